"""Which step sizes to try next: the same number for every method, wherever its best one lies.

Step sizes lie on a ladder whose rungs are a quarter of a decade apart; rung 0 is the method's own default. Three rungs
half a decade apart come first. What is left of the budget follows the best: outwards while it lies at an end,
between it and its neighbours once it does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

FIRST = (-2, 0, 2)
STRIDE = 2


def step_size(default: float, rung: int) -> float:
    """To three digits.

    >>> step_size(0.001, 0), step_size(0.001, 2), step_size(0.001, -4)
    (0.001, 0.00316, 0.0001)
    """
    return float(f"{default * 10 ** (rung / 4):.3g}")


def due(losses: Mapping[int, float], budget: int) -> list[int]:
    """The rungs to run next; ``losses`` are the validation losses known so far. Empty when the budget is spent.

    >>> due({}, 5), due({-2: 3.0, 0: 2.0, 2: 1.0}, 5), due({-2: 3.0, 0: 1.0, 2: 2.0}, 5)
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
