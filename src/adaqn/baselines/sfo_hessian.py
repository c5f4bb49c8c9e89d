"""The Hessian of one subfunction of SFO, from the history of its positions and gradients.

A history is S and Y of shape (m, K), oldest row first: steps between evaluations of the subfunction,
and the changes of its gradient. The result is βI + Vᵀ diag(λ) V with at most 2m rows of V.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

UNRELATED = 1e-12
"""|cos(s, y)| below which a pair tells nothing."""


class Fit(NamedTuple):
    """H = scale·I + vectorsᵀ diag(values) vectors."""

    scale: float
    values: Tensor
    vectors: Tensor


def is_informative(s: Tensor, y: Tensor, rounding: float) -> bool:
    """Does this pair tell a curvature? Neither zero, nor y the rounding of gradients, nor s ⟂ y.

    A negative s·y is informative: the repair of eigenvalues is for that.
    """
    length_s, length_y = float(s.norm()), float(y.norm())
    return length_s > 0.0 and length_y > rounding and abs(float(s @ y)) > UNRELATED * length_s * length_y


def scale_range(S: Tensor, Y: Tensor, rcond: float = 1e-8) -> tuple[float, float] | None:
    """The smallest and largest curvature along the history: β, the start of BFGS, and a cautious value.

    These are the singular values of B = Yᵀ(Sᵀ)⁺, the smallest matrix with B s = y for every pair:
    the square roots of the eigenvalues of a Q² that fulfils the squared secant equations yᵀy = sᵀQ²s.
    ``None`` where the history has no such values.

    >>> A = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    >>> S = torch.eye(3, dtype=torch.float64)[:2]
    >>> scale_range(S, S @ A)
    (2.0, 4.0)
    """
    S, Y = unit_steps(S, Y)
    U, lengths, _ = torch.linalg.svd(S, full_matrices=False)
    rank = int((lengths > rcond * lengths[0]).sum())
    curvatures = torch.linalg.svdvals(U[:, :rank].t() @ Y / lengths[:rank, None])
    low, high = float(curvatures[-1]), float(curvatures[0])
    return (low, high) if low > 0.0 and high < float("inf") else None


def unit_steps(S: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """The same curvatures with every s of length 1: steps early and late differ by many orders of magnitude."""
    lengths = S.norm(dim=1, keepdim=True)
    return S / lengths, Y / lengths


def bfgs(S: Tensor, Y: Tensor, scale: float) -> Tensor:
    """B ← B + y yᵀ/(y·s) − B s sᵀB/(s·B s), pair by pair from scale·I, as a matrix.

    >>> s, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])
    >>> torch.allclose(bfgs(s, y, 0.5) @ s[0], y[0])
    True
    """
    B = scale * torch.eye(S.shape[1], dtype=S.dtype)
    for s, y in zip(S, Y, strict=True):
        Bs = B @ s
        updated = B + torch.outer(y, y) / (y @ s) - torch.outer(Bs, Bs) / (s @ Bs)
        if bool(updated.isfinite().all()):  # after negative curvature s·B s may be 0
            B = updated
    return B


def repaired(eigenvalues: Tensor, condition: float, fallback: float) -> Tensor:
    """Eigenvalues that are negative, or below the largest/``condition``, become the median of the positive ones.

    >>> repaired(torch.tensor([-3.0, 1.0, 2.0, 6.0]), 1e8, 1.0)
    tensor([2., 1., 2., 6.])
    """
    positive = eigenvalues[eigenvalues > 0.0]
    if len(positive) == 0:
        return torch.full_like(eigenvalues, fallback)
    floor = float(eigenvalues.abs().max()) / condition
    return torch.where(eigenvalues < floor, positive.quantile(0.5), eigenvalues)


def fit(S: Tensor, Y: Tensor, condition: float, fallback: float, rcond: float = 1e-8) -> Fit:
    """BFGS over the history, started from the smallest curvature seen in it, made positive definite.

    All of it happens in the span of the history, of dimension 2m at most; outside, H is βI.

    Args:
        S, Y: the history; at least one pair.
        condition: the largest eigenvalue over the smallest that is allowed.
        fallback: β if the history gives none.
        rcond: steps closer to dependent than this count as dependent.
    """
    low, high = scale_range(S, Y, rcond) or (fallback, fallback)
    scale = max(low, high / condition)
    S, Y = unit_steps(S, Y)
    Q: Tensor = torch.linalg.qr(torch.cat([S, Y]).t()).Q
    eigenvalues, rotation = torch.linalg.eigh(bfgs(S @ Q, Y @ Q, scale))
    return Fit(scale, repaired(eigenvalues, condition, high) - scale, (Q @ rotation).t())
