"""Which points a search tries next, given the losses that are known: the same number for every optimizer.

``grid``: every step size with every other choice. ``staged``: the step sizes with the usual choice, then the other
choices at the best of them. ``staged-ladder``: the same with the step sizes of ``ladder``, for tasks where a fixed row
of them may be far off. ``lr``: step sizes alone. ``ladder``: step sizes on rungs a quarter of a decade apart, of
which rung 0 is the optimizer's default: three rungs first, then outwards while the best lies at an end, and
between it and its neighbours once it does not. ``time``: the ladder, with as many step sizes as fit into the time that
``budget`` runs of Adam take. Optimizers that search along lines have one point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.config import RunConfig

MOST_RUNS = 10_000
IN_TIME = "time"
STAGED = ("staged", "staged-ladder")
SEARCHES = ("grid", *STAGED, "lr", "ladder", IN_TIME)


class Point(NamedTuple):
    """A step size, and the number of a choice of what is tuned beside it."""

    lr: float
    choice: int = 0


_CYCLE_LENGTHS = [{"cycle_length": length} for length in (2, 5, 10, 20)]
CHOICES: dict[str, list[dict[str, Any]]] = {
    "adaqn": _CYCLE_LENGTHS,
    "adaqn-paper": _CYCLE_LENGTHS,
    "adam": [{"betas": list(betas)} for betas in itertools.product((0.9, 0.95), (0.99, 0.999))],
}
"""What the paper tunes beside the step size."""
USUAL = {"adaqn": 1, "adaqn-paper": 1, "adam": 1}
"""The choice that is the method's own default: L = 5, betas = (0.9, 0.999)."""
DECADES = 1.0
"""The grid of step sizes reaches this far above and below the optimizer's own default."""


def choices(optimizer: str) -> list[dict[str, Any]]:
    return CHOICES.get(optimizer, [{}])


def configured(base: RunConfig, point: Point) -> RunConfig:
    """The run of a point."""
    return replace(base, lr=point.lr, options={**choices(base.optimizer)[point.choice], **base.options})


def due(search: str, optimizer: str, budget: int, known: Mapping[Point, float]) -> list[Point]:
    """The points to run next; empty when the budget is spent.

    >>> [point.lr for point in due("grid", "sgd", 3, {})]
    [0.01, 0.1, 1.0]
    >>> len(due("staged", "adaqn", 9, {}))
    6
    """
    check(search, optimizer, budget)
    if entry(optimizer).whole:  # it searches along lines
        return [] if known else [Point(entry(optimizer).lr)]
    usual = USUAL.get(optimizer, 0)
    others = [c for c in range(len(choices(optimizer))) if c != usual]
    if search == "grid":
        sizes = step_sizes(optimizer, budget // (1 + len(others)))
        wanted = [Point(lr, choice) for lr in sizes for choice in sorted([usual, *others])]
        return [point for point in wanted if point not in known]
    count = budget - len(others) if search in STAGED else budget
    if search.endswith("ladder"):
        left = _on_ladder(optimizer, count, usual, known)
    else:
        left = [point for lr in step_sizes(optimizer, count) if (point := Point(lr, usual)) not in known]
    if left or search not in STAGED:
        return left
    best = min((point for point in known if point.choice == usual), key=lambda point: (_rank(known[point]), point.lr))
    return [point for c in others if (point := Point(best.lr, c)) not in known]


def _on_ladder(optimizer: str, count: int, usual: int, known: Mapping[Point, float]) -> list[Point]:
    default = entry(optimizer).lr
    rungs = {rung_of(default, point.lr): loss for point, loss in known.items() if point.choice == usual}
    tried = {rung: loss for rung, loss in rungs.items() if rung is not None}
    return [Point(step_size(default, rung), usual) for rung in due_rungs(tried, count)]


def check(search: str, optimizer: str, budget: int) -> None:
    """Can that search be made with so many runs?"""
    if search not in SEARCHES:
        raise UserError(f"no search called {search!r}: give one of {', '.join(SEARCHES)}")
    if budget > MOST_RUNS:
        raise UserError(f"the budget must be at most {MOST_RUNS} runs of each optimizer, got {budget}")
    count = len(choices(optimizer))
    if search == "grid" and (budget < 1 or budget % count):
        raise UserError(f"the budget of {optimizer} must be a multiple of {count}, its choices beside lr; got {budget}")
    least = count if search in STAGED else 1
    if budget < least:
        raise UserError(f"the budget of {optimizer} must be at least {least}, its choices beside lr; got {budget}")


# ---------------------------------------------------------------------- step sizes


def scaled(default: float, decades: float) -> float:
    """So many decades above a step size, to three digits.

    >>> scaled(0.001, 0), scaled(0.001, 0.5), scaled(0.001, -1)
    (0.001, 0.00316, 0.0001)
    """
    return float(f"{default * 10**decades:.3g}")


def step_sizes(optimizer: str, count: int, decades: float = DECADES) -> list[float]:
    """In equal ratios around the optimizer's default."""
    exponents = [0.0] if count == 1 else [decades * (2 * i / (count - 1) - 1) for i in range(count)]
    return [scaled(entry(optimizer).lr, e) for e in exponents]


# ---------------------------------------------------------------------- the ladder

FIRST = (-2, 0, 2)
STRIDE = 2
RUNGS_IN_A_DECADE = 4


def step_size(default: float, rung: int) -> float:
    return scaled(default, rung / RUNGS_IN_A_DECADE)


def rung_of(default: float, lr: float) -> int | None:
    """The rung of that step size; ``None`` if it is on none.

    >>> rung_of(0.001, 0.00316), rung_of(0.001, 0.002)
    (2, None)
    """
    rung = round(RUNGS_IN_A_DECADE * math.log10(lr / default))
    return rung if step_size(default, rung) == lr else None


def due_rungs(losses: Mapping[int, float], budget: int) -> list[int]:
    """The rungs to run next; ``losses`` are the validation losses known so far. Empty when the budget is spent.

    >>> due_rungs({}, 5), due_rungs({-2: 3.0, 0: 2.0, 2: 1.0}, 5), due_rungs({-2: 3.0, 0: 1.0, 2: 2.0}, 5)
    ([-2, 0, 2], [4], [-1, 1])
    """
    first = [rung for rung in sorted(FIRST, key=abs)[:budget] if rung not in losses]
    if first:
        return sorted(first)
    left = budget - len(losses)
    if left <= 0:
        return []
    best, tried = best_rung(losses), sorted(losses)
    if best == tried[0]:
        return [best - STRIDE]
    if best == tried[-1]:
        return [best + STRIDE]
    below, above = max(rung for rung in tried if rung < best), min(rung for rung in tried if rung > best)
    downwards = _rank(losses[below]) <= _rank(losses[above])  # towards the better neighbour first
    nearest = [best + sign * d for d in range(1, budget + 2) for sign in ((-1, 1) if downwards else (1, -1))]
    untried = [rung for rung in nearest if rung not in losses]
    between = [rung for rung in untried if abs(rung - best) == 1]
    return sorted(between[:left]) or untried[:1]


def best_rung(losses: Mapping[int, float]) -> int:
    """Of the lowest validation loss; of equals, the smallest step."""
    return min(losses, key=lambda rung: (_rank(losses[rung]), rung))


def _rank(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
