"""What an optimizer counts, and what it tells about itself: totals, one event per cycle, warnings."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adaqn.core.acceptance import SMALLEST_MULTIPLIER
from adaqn.core.outcome import Outcome

FORMAT = 8
"""Version of the saved state; raise it with any change, and migrate or refuse what is older."""
UNSTORED_WARNING = 50
"""Cycles in a row without a stored pair after which a warning says that only H0 is at work."""
SHORT_STEPS_WARNING = 1.0 / 32.0
"""The step multiplier below which a warning says that rejections have nearly stopped the training."""
SHORT_STEPS = (
    "repeated rejections have shrunk the steps to less than a thirtieth of lr, so the weights hardly move: "
    "print(opt.explain()) shows why. Either lr is far too large, or the monitored batch is not like the batches that "
    "are trained on: then assign another to opt.monitor"
)
RECENT = 40
"""Cycles that an optimizer remembers one by one, for its explanation."""


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
    averaged_steps: int = 0
    """Steps in the growing average (D33)."""
    evaluating: int = 0
    """Is the average in the place of the weights, until ``train()``?"""
    by_first_look: int = 0
    """Verdicts for which a part of the monitored examples was enough (D35)."""

    def restart(self) -> None:
        """Begin a new history; totals go on, and so do the length of cycles and the turn of the monitor."""
        self.started = self.skips_in_row = self.rejections_in_row = self.rejected_at = 0
        self.nonfinite_in_row = self.unstored_in_row = self.averaged_steps = 0
        self.step_multiplier = 1.0

    def halve_steps(self) -> None:
        """They were too large (D24)."""
        self.step_multiplier = max(self.step_multiplier / 2.0, SMALLEST_MULTIPLIER)

    def count(self, outcome: Outcome) -> None:
        """A cycle has ended."""
        self.cycles += 1
        if outcome in (Outcome.STORED, Outcome.SKIPPED, Outcome.REJECTED):
            setattr(self, outcome.value, getattr(self, outcome.value) + 1)
        self.unstored_in_row = 0 if outcome is Outcome.STORED else self.unstored_in_row + 1


@dataclass(frozen=True)
class Stats:
    """Totals since the optimizer was made; they are saved with its state."""

    steps: int
    cycles: int
    stored: int
    skipped: int
    rejected: int
    nonfinite: int
    """Non-finite gradients, which were skipped."""
    pairs: int
    """Curvature pairs in memory now."""
    step_multiplier: float
    """Factor of the step sizes; below 1 after repeated rejections (D11, D15), above 1 while the monitored loss falls in
    nearly every cycle (D37)."""
    cycle_length: int = 5
    """Steps per cycle now; it changes with ``cycle_length="auto"``."""
    by_first_look: int = 0
    """Cycles that were settled by the first look at the monitored examples (D35)."""


@dataclass(frozen=True)
class CycleEvent:
    """The end of one cycle."""

    step: int
    cycle: int
    outcome: Outcome
    candidate_loss: float | None
    """The monitored loss at the average of the cycle; ``None`` if nothing was evaluated."""
    anchor_loss: float | None
    ss: float | None
    """s·s, and below s·y and y·y; ``None`` if no pair was formed."""
    sy: float | None
    yy: float | None
    pairs: int
    step_multiplier: float
    examples: int | None = None
    """Number of losses that judged the cycle; 0 for a scalar, ``None`` if nothing was evaluated."""
    cycle_length: int = 5
    """Length of the next cycle."""
    stored: int = 0
    """Total up to this cycle, as in :class:`Stats`; so are the three below."""
    skipped: int = 0
    rejected: int = 0
    nonfinite: int = 0
    by_first_look: bool = False
    """Whether the first look settled it (D35). The losses above are means over the examples of the first look."""

    @property
    def step_norm(self) -> float | None:
        """‖s‖, how far the average has moved from the anchor; ``None`` if no pair was formed."""
        return None if self.ss is None else math.sqrt(self.ss)

    @property
    def curvature(self) -> float | None:
        """s·y/s·s, the curvature along s as it would be stored, after damping; ``None`` without a pair."""
        return None if not self.ss or self.sy is None else self.sy / self.ss

    def as_dict(self) -> dict[str, float]:
        """Plain numbers by name, for any log. Values that this cycle does not have are left out.

        ``stored``, ``skipped`` and ``rejected`` are 1 for the outcome of this cycle and 0 for the others;
        ``total_...`` are the totals.

        >>> event = CycleEvent(10, 2, Outcome.STORED, 0.5, 0.6, ss=4.0, sy=2.0, yy=1.0, pairs=1, step_multiplier=1.0)
        >>> [event.as_dict()[name] for name in ("loss", "step_norm", "curvature", "stored", "rejected")]
        [0.5, 2.0, 0.5, 1, 0]
        """
        values: dict[str, float | None] = {
            "loss": self.candidate_loss,
            "anchor_loss": self.anchor_loss,
            "step_norm": self.step_norm,
            "curvature": self.curvature,
            "pairs": self.pairs,
            "step_multiplier": self.step_multiplier,
            "cycle_length": self.cycle_length,
            "cycle": self.cycle,
        }
        for outcome in (Outcome.STORED, Outcome.SKIPPED, Outcome.REJECTED):
            values[outcome.value] = int(self.outcome is outcome)
            values[f"total_{outcome.value}"] = getattr(self, outcome.value)
        values["total_nonfinite"] = self.nonfinite
        return {name: value for name, value in values.items() if value is not None}


CycleCallback = Callable[[CycleEvent], None]


def callbacks(on_cycle: Any) -> tuple[Callable[[Any], None], ...]:
    """What is called at the end of each cycle, in order: nothing, one function, or several."""
    if on_cycle is None:
        return ()
    given = tuple(on_cycle) if isinstance(on_cycle, Sequence) and not isinstance(on_cycle, str) else (on_cycle,)
    for callback in given:
        if not callable(callback):
            raise TypeError(f"on_cycle must be a function of one event, or a list of such, got {callback!r}")
    return given


class Notices:
    """Warnings, each once per optimizer."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def say(self, message: str) -> None:
        if message not in self.said:
            self.said.add(message)
            warn(message)


def warn(message: str) -> None:
    """A warning at the first line up the stack that is neither torch's nor ours: where it belongs."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "adaqn"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
