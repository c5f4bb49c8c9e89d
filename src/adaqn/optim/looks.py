"""How a monitored batch is looked at: all at once, or a few examples first, and the rest if they settle nothing (D35).

The first look is at the first examples of the batch: that is a random sample of the training split, as the batch is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from adaqn.core.acceptance import PairedTest
from adaqn.core.curvature import Curvature
from adaqn.optim.judge import Judge
from adaqn.optim.monitor import Monitor
from adaqn.optim.state import State


class Looks(NamedTuple):
    """The parts of the batch, in the order in which they are evaluated."""

    parts: tuple[slice | None, ...] = (None,)
    share: float = 1.0
    """Of the examples of all processes: those of the first part."""


ONE = Looks()
"""All examples at once."""


class Cutter:
    """Is the batch of a monitor looked at twice? Every process says what it could do, and all do the same (D18)."""

    def __init__(self, monitor: Any, judge: Judge) -> None:
        self.monitor, self.judge = monitor, judge
        self.can_be_cut: bool | None = None
        """``None`` before it was tried."""

    def first(self, curvature: Curvature) -> int:
        """The examples of a first look, in each process; 0 where there is none.

        A curvature that needs the gradient of some examples finds them there; where it needs that of all, there is
        nothing to save.
        """
        if not isinstance(self.judge.test, PairedTest) or self.judge.first_look == 0:
            return 0
        examples: int | None = getattr(curvature, "examples", None) if curvature.needs_monitor else 0
        return 0 if examples is None else max(self.judge.first_look, examples)

    def examples(self, curvature: Curvature) -> int:
        """Of the batch here, if it may be looked at twice; 0 if not, and below 0 where that is yet to be tried."""
        first, monitor = self.first(curvature), self.monitor
        if first == 0 or not isinstance(monitor, Monitor) or monitor.count < 2 * first or self.can_be_cut is False:
            return 0
        return monitor.count if self.can_be_cut else -monitor.count

    def agreed(
        self,
        state: State,
        examples: Sequence[float],
        watching: Sequence[float],
        at_anchor: Callable[[], AbstractContextManager[None]],
    ) -> Looks:
        """From the answers of all processes; where one is yet to be tried, all are. Who has no monitor has no say."""
        curvature, processes = state.curvature, state.flat.processes
        known = [count for count, watches in zip(examples, watching, strict=True) if watches]
        first = self.first(curvature)
        if known and all(known) and min(known) < 0:
            with processes.together("the monitor"), at_anchor():
                self.can_be_cut = isinstance(self.monitor, Monitor) and self.monitor.can_be_cut(first)
            rows = processes.table(float(self.monitor is not None), float(self.examples(curvature)))
            known = [count for watches, count in rows if watches]
        if not known or not all(known):
            return ONE
        return Looks((slice(0, first), slice(first, None)), first * len(known) / sum(known))
