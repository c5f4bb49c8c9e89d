"""Preconditioned conjugate gradients with the stopping rule of Martens (2010), as a function of tensors.

What is minimized is φ(x) = ½ xᵀA x − bᵀx. Unlike a linear solver, which watches the residual, the rule watches
how fast φ still falls: an optimizer wants a low φ, and φ is low long before the residual is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

FIRST_SAVED = 5
SPACING = 1.3
"""Iterates are kept at iterations 5, 5·1.3, 5·1.3², … rounded up, and the last one."""
SHORTEST_WINDOW = 10
WINDOW_SHARE = 0.1

Product = Callable[[Tensor], Tensor]


class Stop(Enum):
    """Why the iteration ended."""

    PROGRESS = "progress"
    """φ hardly falls any more: Martens' rule."""
    SOLVED = "solved"
    """The residual is zero to rounding."""
    LIMIT = "limit"
    """The largest number of iterations."""
    CURVATURE = "curvature"
    """pᵀA p ≤ 0 or not a number: A is not positive definite, or its product overflowed."""


@dataclass(frozen=True)
class Solution:
    """The iterates that were kept, oldest first; the last is the solution."""

    iterates: list[Tensor]
    counts: list[int]
    """After how many iterations each was reached."""
    phi: list[float]
    """φ at each of them."""
    stop: Stop

    @property
    def x(self) -> Tensor:
        return self.iterates[-1]

    @property
    def iterations(self) -> int:
        return self.counts[-1]


def window(i: int) -> int:
    """Over how many iterations progress is measured: k = max(10, 0.1 i).

    >>> window(20), window(250)
    (10, 25)
    """
    return max(SHORTEST_WINDOW, math.ceil(WINDOW_SHARE * i))


def has_stalled(phi: list[float], tolerance: float) -> bool:
    """Has φ fallen by less than a share of k·tolerance over the last k iterations? (Martens 2010, section 4.4)

    Args:
        phi: φ at the start and after each iteration.
        tolerance: ε, 5e-4 in the paper; with 0 the answer is always no.

    >>> has_stalled([-1.0 - 1e-9 * i for i in range(12)], 5e-4)
    True
    """
    i = len(phi) - 1
    k = window(i)
    return i > k and phi[i] < 0.0 and (phi[i] - phi[i - k]) / phi[i] < k * tolerance


def conjugate_gradients(
    product: Product,
    b: Tensor,
    start: Tensor | None = None,
    *,
    preconditioner: Tensor | None = None,
    min_iterations: int = 1,
    max_iterations: int = 250,
    tolerance: float = 5e-4,
) -> Solution:
    """Minimize φ(x) = ½ xᵀA x − bᵀx for a symmetric positive definite A given by its product with a vector.

    From a start with φ > 0 the iteration would be worse off than from zero, so it then begins at zero. Hence φ ≤ 0 at
    every iterate, which makes each of them a direction of descent: bᵀx ≥ ½ xᵀA x ≥ 0.

    Args:
        product: v → A v. It must not change v.
        b: the right-hand side, a vector.
        start: the first iterate; zero if not given, which saves one product.
        preconditioner: the diagonal of M, an approximation of A, all positive.
        min_iterations: the stopping rule is not asked before.
        max_iterations: the largest number of iterations, one product each.
        tolerance: ε of the stopping rule; 0 goes on to rounding or to ``max_iterations``.

    >>> A = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> b = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> torch.allclose(conjugate_gradients(A.mv, b, tolerance=0.0).x, torch.linalg.solve(A, b))
    True
    """
    x, r, value = _begin(product, b, start)
    inverse = None if preconditioner is None else preconditioner.reciprocal()
    z = r if inverse is None else r * inverse
    rz = float(r.dot(z))
    smallest = torch.finfo(b.dtype).eps ** 2 * abs(float(b.dot(b if inverse is None else b * inverse)))
    p = z.clone()
    phi, next_saved = [value], float(FIRST_SAVED)
    iterates, counts, values = [], [], []
    stop, i = Stop.LIMIT, 0
    while i < max_iterations:
        if rz <= smallest:
            stop = Stop.SOLVED
            break
        Ap = product(p)
        pAp = float(p.dot(Ap))
        alpha = rz / pAp if pAp > 0.0 else math.inf
        if not math.isfinite(alpha):
            stop = Stop.CURVATURE
            break
        i += 1
        x.add_(p, alpha=alpha)
        r.sub_(Ap, alpha=alpha)
        phi.append(phi[-1] - 0.5 * alpha * rz)  # what this iteration gains, without another inner product
        if i == math.ceil(next_saved):
            iterates.append(x.clone())
            counts.append(i)
            values.append(phi[i])
            next_saved *= SPACING
        if i >= min_iterations and has_stalled(phi, tolerance):
            stop = Stop.PROGRESS
            break
        z = r if inverse is None else r * inverse
        rz_old, rz = rz, float(r.dot(z))
        p.mul_(rz / rz_old).add_(z)
    if not counts or counts[-1] != i:
        iterates.append(x)
        counts.append(i)
        values.append(phi[i])
    return Solution(iterates, counts, values, stop)


def _begin(product: Product, b: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """The first iterate, its residual b − A x and φ."""
    if start is not None:
        r = b - product(start)
        value = -0.5 * float(start.dot(b + r))
        if value <= 0.0:  # false for a product that is not finite
            return start.clone(), r, value
    return torch.zeros_like(b), b.clone(), 0.0
