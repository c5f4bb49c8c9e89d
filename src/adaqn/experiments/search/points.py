"""Which points a search tries: step sizes around an optimizer's default, and what the paper tunes beside them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.config import RunConfig

Point = dict[str, float]

# What the paper tunes beside the step size, as choices by number: Optuna stores numbers best.
_CYCLE_LENGTHS = [{"cycle_length": length} for length in (2, 5, 10, 20)]
SECOND: dict[str, list[dict[str, Any]]] = {
    "adaqn": _CYCLE_LENGTHS,
    "adaqn-paper": _CYCLE_LENGTHS,
    "adam": [{"betas": list(betas)} for betas in itertools.product((0.9, 0.95), (0.99, 0.999))],
}
USUAL = {"adaqn": 1, "adaqn-paper": 1, "adam": 1}
"""The choice that is the method's own default: L = 5, betas = (0.9, 0.999)."""
DECADES = 1.0
"""The grid of step sizes reaches this far above and below the optimizer's own default."""
SEARCHES = ("grid", "staged", "lr")


def step_sizes(optimizer: str, count: int, decades: float = DECADES) -> list[float]:
    """In equal ratios around the optimizer's default, to three digits."""
    exponents = [0.0] if count == 1 else [decades * (2 * i / (count - 1) - 1) for i in range(count)]
    return [float(f"{entry(optimizer).lr * 10**e:.3g}") for e in exponents]


def grid(optimizer: str, budget: int, search: str = "grid") -> list[Point]:
    """The points to begin with. ``"grid"``: every step size with every other choice, ``budget`` in all. ``"staged"``:
    the step sizes with the usual choice; the other choices follow at the best of them, ``budget`` in all too.
    ``"lr"``: step sizes alone.

    >>> [point["lr"] for point in grid("sgd", 3)]
    [0.01, 0.1, 1.0]
    >>> len(grid("adaqn", 9, "staged"))
    6
    """
    if search not in SEARCHES:
        raise UserError(f"no search called {search!r}: give one of {', '.join(SEARCHES)}")
    second = 1 if search == "lr" else len(SECOND.get(optimizer, [{}]))
    if search != "grid":
        if budget < second:
            raise UserError(f"the budget of {optimizer} must be at least {second}, its choices beside lr; got {budget}")
        usual = USUAL.get(optimizer, 0)
        return [{"lr": lr, "choice": usual} for lr in step_sizes(optimizer, budget - second + 1)]
    if budget < 1 or budget % second:
        raise UserError(
            f"the budget of {optimizer} must be a multiple of {second}, its choices beside lr; got {budget}"
        )
    return [{"lr": lr, "choice": c} for lr in step_sizes(optimizer, budget // second) for c in range(second)]


def second_stage(optimizer: str, lr: float) -> list[Point]:
    """The choices that were not tried yet, at one step size."""
    usual = USUAL.get(optimizer, 0)
    return [{"lr": lr, "choice": c} for c in range(len(SECOND.get(optimizer, [{}]))) if c != usual]


def configured(base: RunConfig, point: Point) -> RunConfig:
    """The run of a point of the grid."""
    choice = SECOND.get(base.optimizer, [{}])[int(point["choice"])]
    return replace(base, lr=point["lr"], options={**choice, **base.options})


def best_step_size(optimizer: str, trials: list[dict[str, Any]]) -> float:
    usual = SECOND.get(optimizer, [{}])[USUAL.get(optimizer, 0)]
    first = [trial for trial in trials if all(trial[key] == value for key, value in usual.items())]
    lr: float = min(first, key=lambda trial: trial["valid_loss"])["lr"]
    return lr
