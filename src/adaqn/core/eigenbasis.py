"""The eigenbasis of Shampoo's Kronecker factors: what a Kronecker scaling computes, as functions of matrices.

G is a gradient as a p × q matrix, L and R are running averages of G Gᵀ and GᵀG, and Q_L and Q_R their eigenvectors.
``None`` in place of a basis is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 128.0
"""How far above the rounding errors of a rotation the smallest root lies, in units of the dtype's precision."""

FLOOR = 1e-6
"""Eigenvalues below so much of the largest have eigenvectors that are made of rounding errors; what to take for their
directions is decided by rule, so that the same gradients with other last digits give nearly the same basis."""


def matrix_shape(shape: Sequence[int], cut: int | None = None) -> tuple[int, int]:
    """(p, q) of a tensor as a matrix: its dimensions cut in two where that is most nearly square, or before ``cut``.

    A convolution's (out, in, height, width) becomes out × rest, whatever the place of the kernel. A vector has no
    second side: (p, 1).

    >>> matrix_shape((64, 32, 3, 3)), matrix_shape((3, 3, 32, 64)), matrix_shape((1, 512, 256)), matrix_shape((7,))
    ((64, 288), (288, 64), (512, 256), (7, 1))
    """
    if len(shape) < 2:
        return math.prod(shape), 1
    if cut is not None:
        return math.prod(shape[:cut]), math.prod(shape[cut:])
    cuts = ((math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape)))
    return min(cuts, key=sum)  # the first of equals


def into_basis(v: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Q_Lᵀ v Q_R, in new memory."""
    rotated = v if left is None else _product(left.t(), v)
    rotated = rotated if right is None else _product(rotated, right)
    return rotated.clone() if rotated is v else rotated


def out_of_basis(v: Tensor, left: Tensor | None, right: Tensor | None, out: Tensor) -> Tensor:
    """out ← Q_L v Q_Rᵀ, where ``out`` is not ``v``."""
    if right is None:
        return out.copy_(v) if left is None else torch.mm(left, v, out=out)
    return torch.mm(v if left is None else _product(left, v), right.t(), out=out)


def lift(roots: Tensor) -> Tensor:
    """roots ← max(roots, 128·ulp·‖roots‖), in place: no direction is scaled by what is only a rounding error.

    Where gradients have no part, as those of low rank have none in most directions, the rotated ones hold rounding
    errors of about ulp·‖G‖, and so do their roots: dividing one by the other would step there as far as anywhere.
    """
    smallest = torch.linalg.vector_norm(roots) * (ROUNDING * torch.finfo(roots.dtype).eps)
    return torch.maximum(roots, smallest, out=roots)


def add_outer(average: Tensor, g: Tensor, decay: float) -> None:
    """average ← decay·average + (1 − decay) g gᵀ, without a temporary."""
    average.addmm_(g, g.t(), beta=decay, alpha=1.0 - decay)


def first_basis(average: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix, of the largest eigenvalue first; the identity where there are none.

    A gradient of low rank says nothing of most directions: there the basis goes on with what is left of the first
    coordinate axes (``FLOOR``).

    >>> first_basis(torch.diag(torch.tensor([1.0, 3.0, 0.0]))).abs()
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 1.]])
    """
    identity = torch.eye(len(average), dtype=average.dtype, device=average.device)
    try:
        values, Q = torch.linalg.eigh(average)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return identity
    known = int((values > FLOOR * values[-1]).sum())
    Q = torch.linalg.qr(torch.cat([Q.flip(1)[:, :known], identity], 1)).Q
    return torch.where(Q.isfinite().all(), Q, identity)


def next_basis(average: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One power iteration from a basis, made orthonormal by QR: (the new basis, the order of the old columns in it).

    Columns are sorted by their Rayleigh quotients first, so that QR keeps the directions of the largest eigenvalues
    and bends the others to them. Columns of which the average knows nothing (``FLOOR``) keep their order and, but for
    that bending, their direction. Where the average is zero, or not finite, the basis stays as it is. Nothing is read
    back by the host.
    """
    product = _product(average, basis)
    quotients = (basis * product).sum(0)
    smallest = FLOOR * quotients.max()
    order = torch.maximum(quotients, smallest).argsort(descending=True, stable=True)
    Q = torch.linalg.qr(torch.addcmul(product, basis, smallest)[:, order]).Q
    usable = Q.isfinite().all() & product.any()
    return torch.where(usable, Q, basis), torch.where(usable, order, torch.arange(len(order), device=order.device))


def _product(a: Tensor, b: Tensor) -> Tensor:
    # With out= a step inside autocast is not rounded to its dtype.
    return torch.mm(a, b, out=torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device))
