"""The sentence on top of a comparison: when did one method come to where another one ended?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adaqn.experiments.comparison.summary import first_reached, over_seeds
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.whole_settings import is_whole

OURS = "adaqn"
"""How the names of our own optimizers begin."""
YARDSTICKS = ("adam", "adamw", "torch-lbfgs")
"""Whose end is the goal, where there is one of them; otherwise the best of the others."""


@dataclass(frozen=True)
class Contender:
    """Runs of one optimizer that differ only in their seed."""

    optimizer: str
    name: str
    runs: Sequence[Finished]

    def trace(self, against: str) -> list[tuple[float, float]]:
        """(second or step, test loss) of every evaluation, means over the seeds; infinite where one is not finite."""
        length = min(len(run.metrics) for run in self.runs)
        columns = [
            over_seeds([[record[key] for record in run.metrics[:length]] for run in self.runs])["mean"]
            for key in (against, "test_loss")
        ]
        return [(x, loss if math.isfinite(loss) else math.inf) for x, loss in zip(*columns, strict=True)]

    @property
    def end(self) -> float:
        return self.trace("step")[-1][1]

    def when(self, goal: float) -> str | None:
        """After how many seconds and steps it first had that loss; ``None`` if it never had."""
        seconds, steps = (first_reached(self.trace(against), goal) for against in ("seconds", "step"))
        return None if seconds is None or steps is None else self._moment(seconds, steps)

    @property
    def at_the_end(self) -> str:
        return self._moment(self.trace("seconds")[-1][0], self.trace("step")[-1][0])

    def _moment(self, seconds: float, steps: float) -> str:
        counted = "evaluations" if is_whole(self.runs[0].result["config"]["task"]) else "steps"
        return f"{seconds:.{0 if seconds >= 10 else 1}f} s and {steps:,.0f} {counted}"


def loss_text(loss: float) -> str:
    """Three decimals, or three digits where they would say nothing.

    >>> loss_text(1.42), loss_text(0.00012)
    ('1.420', '0.00012')
    """
    return f"{loss:.3f}" if abs(loss) >= 0.1 else f"{loss:.3g}"


def rivals(contenders: Sequence[Contender]) -> tuple[Contender, Contender] | None:
    """(the challenger, whose end it is measured by): the best of ours and the best Adam, where they are there."""
    best = sorted(contenders, key=lambda contender: contender.end)
    challenger = next((c for c in best if c.optimizer.startswith(OURS)), best[0] if best else None)
    others = [c for c in best if challenger is not None and c.optimizer != challenger.optimizer]
    if challenger is None or not others:
        return None
    known = [c for name in YARDSTICKS for c in others if c.optimizer == name]
    return challenger, known[0] if known else others[0]


def headline(contenders: Sequence[Contender]) -> str | None:
    """One sentence or two, whichever way it went; ``None`` where there is nothing to compare."""
    pair = rivals(contenders)
    if pair is None:
        return None
    ours, other = pair
    seeds = min(len(ours.runs), len(other.runs))
    return f"{_said(ours, other)} {'One seed.' if seeds == 1 else f'Means over {seeds} seeds.'}"


def _said(ours: Contender, other: Contender) -> str:
    loss = "loss" if is_whole(ours.runs[0].result["config"]["task"]) else "test loss"
    lost = [contender.name for contender in (ours, other) if not math.isfinite(contender.end)]
    if len(lost) == 2:
        return f"Both {other.name} and {ours.name} ended with a loss that is not finite."
    if lost:
        kept = other if lost == [ours.name] else ours
        ended = f"{kept.name} at {loss_text(kept.end)} after {kept.at_the_end}"
        return f"{lost[0]} ended with a loss that is not finite, {ended}."
    goal = f"{other.name}'s final {loss} ({loss_text(other.end)} after {other.at_the_end})"
    reached = ours.when(other.end)
    if reached is not None:
        late = first_reached(ours.trace("seconds"), other.end) or 0.0
        only = "only " if late > other.trace("seconds")[-1][0] else ""
        return f"{goal} was reached by {ours.name} {only}after {reached}."
    behind = other.when(ours.end)
    return (
        f"{goal} was not reached by {ours.name}, which ended at {loss_text(ours.end)} after {ours.at_the_end}. "
        f"{other.name} had that after {behind}."
    )
