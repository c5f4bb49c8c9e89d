"""How far to go along a model's solution, and how much to trust the model next time; functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

SUFFICIENT_DECREASE = 1e-2
SHRINK = 0.8
MOST_REDUCTIONS = 60
DISTRUST_BELOW, TRUST_ABOVE = 0.25, 0.75
DAMPING_RANGE = (1e-10, 1e10)

LossAt = Callable[[Tensor], float]
"""A step → the loss after it; infinite where it is not a number."""


def best_iterate(steps: Sequence[Tensor], loss_at: LossAt) -> tuple[int, float]:
    """Walk back from the last step for as long as the loss falls; which one it was, and its loss.

    The model is minimized by the last iterate, the loss often by an earlier one. (Martens 2010, section 4.6)
    """
    chosen = len(steps) - 1
    best = loss_at(steps[chosen])
    for j in range(chosen - 1, -1, -1):
        earlier = loss_at(steps[j])
        if earlier > best:
            break
        chosen, best = j, earlier
    return chosen, best


def armijo(loss_along: Callable[[float], float], f0: float, slope: float, f1: float) -> tuple[float, float]:
    """The largest rate 1, 0.8, 0.8², … with f(rate) ≤ f(0) + 0.01·rate·slope, and its loss; rate 0 if there is none.

    Args:
        loss_along: rate → loss.
        f0: the loss at rate 0.
        slope: the derivative of the loss along the step, which must be negative.
        f1: the loss at rate 1, already known.

    >>> rate, loss = armijo(lambda t: (1 - 4 * t) ** 2, f0=1.0, slope=-8.0, f1=9.0)
    >>> round(rate, 4)  # 0.8⁴: the first below a half
    0.4096
    """
    if not slope < 0.0:
        return 0.0, f0
    rate, f = 1.0, f1
    for _ in range(MOST_REDUCTIONS):
        if f <= f0 + SUFFICIENT_DECREASE * rate * slope:
            return rate, f
        rate *= SHRINK
        f = loss_along(rate)
    return 0.0, f0


def reduction_ratio(actual: float, predicted: float) -> float:
    """ρ: the change of the loss over the change that the model foretold; −∞ if that was not a decrease.

    >>> reduction_ratio(-1.0, -2.0), reduction_ratio(math.inf, -1.0), reduction_ratio(-1.0, 0.0)
    (0.5, -inf, -inf)
    """
    if not (math.isfinite(actual) and predicted < 0.0):
        return -math.inf
    return actual / predicted


def adjusted_damping(damping: float, rho: float, factor: float) -> float:
    """The Levenberg-Marquardt rule: λ/factor if ρ < 1/4, λ·factor if ρ > 3/4, and λ between.

    >>> adjusted_damping(6.0, 0.9, 2 / 3), adjusted_damping(6.0, 0.5, 2 / 3), adjusted_damping(6.0, 0.1, 2 / 3)
    (4.0, 6.0, 9.0)
    """
    if DISTRUST_BELOW <= rho <= TRUST_ABOVE or damping == 0.0:
        return damping
    low, high = DAMPING_RANGE
    if rho > TRUST_ABOVE:
        return max(damping * factor, min(damping, low))
    return min(damping / factor, max(damping, high))
