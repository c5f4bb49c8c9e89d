"""What an optimizer tells about itself: totals, and one event per cycle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adaqn.core.outcome import Outcome


@dataclass(frozen=True)
class Stats:
    """Totals since the optimizer was made; they are saved with its state."""

    steps: int
    cycles: int
    stored: int
    skipped: int
    rejected: int
    nonfinite: int
    """Gradients that were not finite, and so made no step."""
    pairs: int
    """Curvature pairs in memory now."""
    step_multiplier: float
    """Below 1 after repeated rejections (D11, D15); the step sizes are multiplied by it."""
    cycle_length: int = 5
    """Steps per cycle now; it changes with ``cycle_length="auto"``."""


@dataclass(frozen=True)
class CycleEvent:
    """The end of one cycle."""

    step: int
    cycle: int
    outcome: Outcome
    candidate_loss: float | None
    """The monitored loss at the average of the cycle; ``None`` where nothing was evaluated."""
    anchor_loss: float | None
    ss: float | None
    """s·s, and below s·y and y·y; ``None`` where no pair was formed."""
    sy: float | None
    yy: float | None
    pairs: int
    step_multiplier: float
    examples: int | None = None
    """How many losses the monitor returned; 0 is a scalar, ``None`` where nothing was evaluated."""
    cycle_length: int = 5
    """Of the cycle that follows."""
    stored: int = 0
    """Totals up to this cycle, as in :class:`Stats`, and so are the three below."""
    skipped: int = 0
    rejected: int = 0
    nonfinite: int = 0

    @property
    def step_norm(self) -> float | None:
        """‖s‖, how far the average has moved from the anchor; ``None`` where no pair was formed."""
        return None if self.ss is None else math.sqrt(self.ss)

    @property
    def curvature(self) -> float | None:
        """s·y/s·s, the curvature along s as it would be stored, after damping; ``None`` without a pair."""
        return None if not self.ss or self.sy is None else self.sy / self.ss

    def as_dict(self) -> dict[str, float]:
        """Plain numbers by name, for any log; what this cycle does not have is left out.

        ``stored``, ``skipped`` and ``rejected`` are 1 for the verdict on this cycle and 0 for the others;
        ``total_...`` count them.

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


def callbacks(on_cycle: Any) -> tuple[CycleCallback, ...]:
    """What is called at the end of each cycle, in order: nothing, one function, or several."""
    if on_cycle is None:
        return ()
    given = tuple(on_cycle) if isinstance(on_cycle, Sequence) and not isinstance(on_cycle, str) else (on_cycle,)
    for callback in given:
        if not callable(callback):
            raise TypeError(f"on_cycle must be a function of a CycleEvent, or a list of such, got {callback!r}")
    return given
