"""What an optimizer tells about itself: totals, and one event per cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


CycleCallback = Callable[[CycleEvent], None]
