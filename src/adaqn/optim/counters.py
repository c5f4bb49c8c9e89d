"""The plain numbers of an optimizer, and the version of the state that they are saved in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adaqn.core.acceptance import SMALLEST_MULTIPLIER

FORMAT = 4
"""Version of the saved state; raise it with any change, and migrate or refuse what is older."""


@dataclass
class Counters:
    """Plain numbers that change from step to step; all of them are saved."""

    steps: int = 0
    cycles: int = 0
    stored: int = 0
    skipped: int = 0
    rejected: int = 0
    nonfinite: int = 0
    started: int = 0
    skips_in_row: int = 0
    rejections_in_row: int = 0
    nonfinite_in_row: int = 0
    unstored_in_row: int = 0
    step_multiplier: float = 1.0
    rejected_at: int = 0
    """The cycle of the last rejection, counted from 1; 0 is none (D15)."""
    cycle_length: int = 0
    """Where it adapts, as it is now; 0 is as it began."""
    monitor_position: int = 0
    """Which set of a rotating monitor was in use."""
    has_best: int = 0
    """Is it known (D23)?"""
    best_loss: float = 0.0
    """The lowest mean of the monitored losses at an accepted average, of either sign."""
    best_error: float = 0.0
    """The standard error of that mean."""

    def restart(self) -> None:
        """Begin a new history; totals go on, and so do the length of cycles and the turn of the monitor."""
        self.started = self.skips_in_row = self.rejections_in_row = self.rejected_at = 0
        self.nonfinite_in_row = self.unstored_in_row = 0
        self.step_multiplier = 1.0
        self.forget_best()

    def forget_best(self) -> None:
        """Losses of another monitor, or after weights were changed from outside, do not compare."""
        self.has_best, self.best_loss, self.best_error = 0, 0.0, 0.0

    def halve_steps(self) -> None:
        """D15 and D23: they were too large."""
        self.step_multiplier = max(self.step_multiplier / 2.0, SMALLEST_MULTIPLIER)

    def note_best(self, loss: float, error: float) -> None:
        """An accepted average has that loss."""
        if not self.has_best or loss < self.best_loss:
            self.has_best, self.best_loss, self.best_error = 1, loss, error


NEW_IN_2 = ("rejected_at", "cycle_length", "monitor_position")
NEW_IN_4 = ("has_best", "best_loss", "best_error")
SIGNED = ("best_loss",)
"""All others are at least 0."""


def migrated(entry: dict[str, Any]) -> dict[str, Any]:
    """The saved state of a parameter in today's format; what it cannot be brought to is left for the check to name.

    Format 1 knew no adaptive cycles, no rotating monitor's turn and no window of rejections: zero stands for each.
    Formats 1 and 2 had an accepted average only where it was kept. Formats 1 to 3 did not remember the best loss.
    """
    if entry.get("format") not in (1, 2, 3):
        return entry
    kept = {"keeps_accepted": int("accepted" in entry)}
    known = {"accepted": entry["anchor"]} if "anchor" in entry else {}
    return {**dict.fromkeys((*NEW_IN_2, *NEW_IN_4), 0), **kept, **known, **entry, "format": FORMAT}
