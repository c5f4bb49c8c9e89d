"""Is the candidate good enough to keep? (Alg. 1, l. 12)

Losses come as scalars or as 1-D tensors of per-example losses; their mean decides.
"""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

STEP_RECOVERY = 1.02
"""D11: what the halved step multiplier regains with every accepted cycle."""
NONFINITE_PATIENCE = 20
"""D13: non-finite gradients in a row after which the weights return to the anchor."""


def is_rejected(f_new: float, f_old: float, factor: float) -> bool:
    """Has the monitored loss got worse by more than noise explains? (Alg. 1, l. 12)

    Sign-safe: for a positive loss this is the paper's ``f_new > factor * f_old`` (D5).
    A new loss that is not finite is always rejected. An old one is finite while the monitoring
    set is fixed; where a changing set makes it not so, that set cannot judge and rejects nothing (D7).

    >>> is_rejected(1.02, 1.0, factor=1.01), is_rejected(-0.98, -1.0, factor=1.01)
    (True, True)
    >>> is_rejected(1.005, 1.0, factor=1.01), is_rejected(float("nan"), 1.0, factor=1.01)
    (False, True)
    """
    if not math.isfinite(f_old):
        return False
    return not f_new <= f_old + (factor - 1.0) * abs(f_old)


class Acceptance(Protocol):
    """Anything that tells from the losses at both points whether the candidate is rejected."""

    def __call__(self, new: Tensor, old: Tensor) -> bool:
        """``new`` at the candidate, ``old`` at the anchor: scalars, or losses of the same examples."""
        ...


class FactorTest:
    """Reject when the mean loss grew by more than ``factor`` (the paper's γ)."""

    def __init__(self, factor: float = 1.01) -> None:
        if not (math.isfinite(factor) and factor >= 1.0):
            raise ValueError(f"reject_factor must be a finite number of at least 1, got {factor}")
        self.factor = factor

    def __call__(self, new: Tensor, old: Tensor) -> bool:
        return is_rejected(mean_loss(new), mean_loss(old), self.factor)


class RelativeTest(FactorTest):
    """Reject when (f_new − f_old)/|f_old| exceeds ``tolerance``, the paper's γ̃.

    For positive losses this is the factor test with γ = 1 + γ̃, and it is built as that (D12).
    """

    def __init__(self, tolerance: float = 0.01) -> None:
        if not 0.0 < tolerance < 1.0:
            raise ValueError(f"the tolerance of the relative test must lie between 0 and 1, got {tolerance}")
        super().__init__(1.0 + tolerance)


def mean_loss(losses: Tensor) -> float:
    """The number that decides, as a Python float (one read from the device)."""
    return float(losses.mean())
