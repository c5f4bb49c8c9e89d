"""Which pairs are fit to store (Alg. 1, l. 19), and how a pair is repaired before it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from adaqn.core.barzilai_borwein import BoundedBarzilaiBorwein
from adaqn.core.products import Reduce, local
from adaqn.core.scaling import Scaling

CurvatureTest = Callable[[float, float, float, float], bool]
"""(s·s, s·y, y·y, ε) → may the pair be stored?"""


def absolute(ss: float, sy: float, yy: float, eps: float) -> bool:
    """s·y > ε s·s, as the paper prints it. Depends on the scale of the loss (see :func:`scale_free`).

    >>> absolute(ss=1.0, sy=2e-4, yy=1.0, eps=1e-4), absolute(ss=1.0, sy=1e-5, yy=1.0, eps=1e-4)
    (True, False)
    """
    return is_usable(sy, yy) and sy > eps * ss


def scale_free(ss: float, sy: float, yy: float, eps: float) -> bool:
    """s·y > ε‖s‖‖y‖: the angle between s and y decides, whatever the scale of the loss.

    A loss that is a hundred times smaller makes the Fisher product y ten thousand times smaller:
    the absolute test then skips every pair, and this one stores the same ones as before.

    >>> scale_free(ss=1.0, sy=1e-9, yy=1e-16, eps=1e-4)
    True
    """
    return is_usable(sy, yy) and sy > eps * math.sqrt(ss) * math.sqrt(yy)


def positive(ss: float, sy: float, yy: float, eps: float) -> bool:
    """s·y > 0: all that a positive definite H needs.

    >>> positive(1.0, 1e-9, 1.0, eps=1e-4), positive(1.0, -1.0, 1.0, eps=1e-4)
    (True, False)
    """
    return is_usable(sy, yy)


def is_usable(sy: float, yy: float) -> bool:
    """May 1/s·y and s·y/y·y be formed at all? No test may store a pair otherwise (D14)."""
    return all(math.isfinite(value) and value > 0.0 and math.isfinite(1.0 / value) for value in (sy, yy))


CURVATURE_TESTS: dict[str, CurvatureTest] = {"absolute": absolute, "scale_free": scale_free, "positive": positive}

Repair = Callable[[Tensor, Tensor, Scaling, Reduce], None]
"""(s, y, H0, reduction) → y changed in place, before the pair is judged."""


def products(s: Tensor, y: Tensor, reduce: Reduce = local) -> list[float]:
    """s·s, s·y and y·y as Python floats: one read from the device."""
    values: list[float] = reduce(torch.stack([s @ s, s @ y, y @ y]).double()).tolist()
    return values


class Shift:
    """y ← y + amount·s: a larger curvature along every s (oLBFGS's λ), or a smaller one (RES's −δ)."""

    def __init__(self, amount: float) -> None:
        if not math.isfinite(amount):
            raise ValueError(f"the shift of y along s must be finite, got {amount}")
        self.amount = amount

    def __call__(self, s: Tensor, y: Tensor, scaling: Scaling, reduce: Reduce = local) -> None:
        y.add_(s, alpha=self.amount)


class TowardsH0:
    """ȳ ← θy + (1−θ)H0⁻¹s with the largest θ ≤ 1 for which s·ȳ ≥ share·s·H0⁻¹s.

    A Fisher product is of the order of g², and H0⁻¹ of that of g: where losses and gradients are small, a pair would
    say that there is no curvature along s, and the next step along it would be without bound. So far below H0's own
    guess a pair is not believed; above it, where pairs shorten steps, it is as it was. Nothing is
    read back by the host.
    """

    def __init__(self, share: float) -> None:
        if not 0.0 < share <= 1.0:
            raise ValueError(f"damping must lie in [0, 1], got {share}: 0 is none, 0.5 is usual")
        self.share = share

    def __call__(self, s: Tensor, y: Tensor, scaling: Scaling, reduce: Reduce = local) -> None:
        along = scaling.apply_inverse(s, out=torch.empty_like(s))
        h0, sy = reduce(torch.stack([s @ along, s @ y]).double())
        damped = h0.isfinite() & (sy < self.share * h0)  # false where sy is not a number
        theta = torch.where(damped, (1.0 - self.share) * h0 / (h0 - sy), 1.0)
        along.nan_to_num_()  # zero times it must be zero
        y.mul_(theta).addcmul_(along, 1.0 - theta)


class Damping:
    """ȳ ← θy + (1−θ)H0⁻¹s with θ such that s·ȳ ≥ 0.25 s·H0⁻¹s, as in SdLBFGS: H stays positive definite.

    H0⁻¹ = max(y·y/s·y, δ) I is learnt from the same pair before it is damped.
    """

    share = 0.25

    def __call__(self, s: Tensor, y: Tensor, scaling: Scaling, reduce: Reduce = local) -> None:
        if not isinstance(scaling, BoundedBarzilaiBorwein):
            raise TypeError(f"damping needs the bounded Barzilai-Borwein scaling, got {type(scaling).__name__}")
        ss, sy, yy = products(s, y, reduce)
        if not math.isfinite(yy) or ss == 0.0:
            return  # such a pair is not stored, and says nothing about H0
        scaling.measure(sy, yy)
        along_h0 = ss / scaling.factor
        if sy < self.share * along_h0:
            theta = (1.0 - self.share) * along_h0 / (along_h0 - sy)
            y.mul_(theta).add_(s, alpha=(1.0 - theta) / scaling.factor)
