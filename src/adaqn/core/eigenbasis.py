"""The eigenbasis of Shampoo's Kronecker factors: what a Kronecker scaling computes, as functions of matrices.

G is a gradient as a p × q matrix, L and R are running averages of G Gᵀ and GᵀG, and Q_L and Q_R their eigenvectors.
``None`` in place of a basis is the identity. Each function takes one matrix or a stack of them, a tensor of
three dimensions, and reads nothing back to the host, but for :func:`is_orthonormal`, which is for loading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 128.0
"""How far above the rounding errors of a rotation the smallest root lies, in units of the dtype's precision."""

ROUNDED = 1e-2
"""How far products of a basis's columns may be from 0 and 1: well above rounding, well below numbers of another."""

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
    rotated = v if left is None else _product(left.mT, v)
    rotated = rotated if right is None else _product(rotated, right)
    return rotated.clone() if rotated is v else rotated


def out_of_basis(v: Tensor, left: Tensor | None, right: Tensor | None, out: Tensor) -> Tensor:
    """out ← Q_L v Q_Rᵀ, where ``out`` is not ``v``."""
    if right is None:
        return out.copy_(v) if left is None else _product(left, v, out)
    return _product(v if left is None else _product(left, v), right.mT, out)


def lift(roots: Tensor) -> Tensor:
    """roots ← max(roots, 128·ulp·‖roots‖), in place: no direction is scaled by what is only a rounding error.

    Where gradients have no part, as those of low rank have none in most directions, the rotated ones hold rounding
    errors of about ulp·‖G‖, and so do their roots: dividing one by the other would step there as far as anywhere.
    """
    norms = torch.linalg.vector_norm(roots, dim=(-2, -1), keepdim=True)
    smallest = norms.mul_(ROUNDING * torch.finfo(roots.dtype).eps)
    return torch.maximum(roots, smallest, out=roots)


def add_outer(average: Tensor, g: Tensor, transposed: Tensor, keep: float, add: float) -> None:
    """average ← keep·average + add·g gᵀ of every matrix of a stack, without a temporary."""
    average.baddbmm_(g, transposed, beta=keep, alpha=add)


def first_basis(average: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix, of the largest eigenvalue first; the identity where there are none.

    A gradient of low rank says nothing of most directions: there the basis goes on with what is left of the first
    coordinate axes (``FLOOR``).

    >>> first_basis(torch.diag(torch.tensor([1.0, 3.0, 0.0]))).abs()
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 1.]])
    """
    n = average.shape[-1]
    identity = torch.eye(n, dtype=average.dtype, device=average.device).expand_as(average)
    usable = _finite(average)
    values, Q = torch.linalg.eigh(torch.where(usable, average, identity))
    known = (values > FLOOR * values[..., -1:]).sum(-1, keepdim=True)  # how many
    places = torch.arange(n, device=average.device)
    columns = torch.where(places < known, places, n + places - known)
    both = torch.cat([Q.flip(-1), identity], -1)
    Q = orthonormal(sorted_along(both, columns, -1))
    return torch.where(usable & _finite(Q), Q, identity)


def next_basis(average: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One power iteration from a basis, made orthonormal by QR: (the new basis, the order of the old columns in it).

    Columns are sorted by their Rayleigh quotients first, so that QR keeps the directions of the largest eigenvalues
    and bends the others to them. Columns of which the average knows nothing (``FLOOR``) keep their order and, but for
    that bending, their direction. Where the average is zero, or not finite, the basis stays as it is.
    """
    product = _product(average, basis)
    quotients = (basis * product).sum(-2)
    largest = quotients.amax(-1, keepdim=True)
    smallest = FLOOR * largest
    order = torch.maximum(quotients, smallest).argsort(descending=True, stable=True)
    shifted = product.addcmul_(basis, smallest.unsqueeze(-2))
    Q = orthonormal(sorted_along(shifted, order, -1))
    usable = Q.sum((-2, -1)).isfinite().unsqueeze(-1) & largest.gt(0.0)
    places = torch.arange(order.shape[-1], device=order.device)
    return torch.where(usable.unsqueeze(-1), Q, basis), torch.where(usable, order, places)


def sorted_along(matrices: Tensor, order: Tensor, dim: int) -> Tensor:
    """Columns (``dim`` −1) or rows (−2) in that order, in new memory."""
    places = order.unsqueeze(-2 if dim == -1 else -1)
    shape = [*matrices.shape]
    shape[dim] = order.shape[-1]
    return matrices.gather(dim, places.expand(shape))


def orthonormal(matrices: Tensor) -> Tensor:
    """Q of a QR decomposition; R is not made."""
    Q: Tensor = torch.linalg.householder_product(*torch.geqrf(matrices))
    return Q


def is_orthonormal(basis: Tensor) -> bool:
    """Are its columns, up to what rounding may leave?"""
    off = (basis.mT @ basis).sub_(torch.eye(len(basis), dtype=basis.dtype, device=basis.device))
    return bool(off.abs().max() < ROUNDED)


def carried(V: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Mean squares in the coordinates of bases from those in the coordinates of the matrix, as if of independent
    numbers: (Q_L∘Q_L)ᵀ V (Q_R∘Q_R).
    """
    return into_basis(V, None if left is None else left.square(), None if right is None else right.square())


def carried_back(V: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """The other way round: (Q_L∘Q_L) V (Q_R∘Q_R)ᵀ.

    >>> turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    >>> carried_back(torch.tensor([[1.0], [0.0]]), turned, None).flatten()
    tensor([0.3600, 0.6400])
    """
    squares = [None if basis is None else basis.square() for basis in (left, right)]
    return out_of_basis(V, squares[0], squares[1], out=torch.empty_like(V))


def _finite(matrix: Tensor) -> Tensor:
    return matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)


def _product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    # With out= a step inside autocast is not rounded to its dtype; outside it would be one more operation.
    if out is None and torch.is_autocast_enabled(a.device.type):
        out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype, device=a.device)
    multiply = torch.bmm if a.dim() == 3 else torch.mm
    return multiply(a, b) if out is None else multiply(a, b, out=out)
