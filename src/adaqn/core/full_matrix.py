r"""H as an n × n matrix, for problems small enough: BFGS and two self-scaled updates of it.

All are one formula of Broyden's family, with the letters of Urbán, Stefanou and Pons (J. Comput. Phys. 523, 113656)

.. math::
    H_+ = \frac{1}{\tau} \Big( H - \frac{Hy\,(Hy)^T}{y \cdot Hy} + \phi\, v v^T \Big) + \frac{s s^T}{y \cdot s}, \quad
    v = \sqrt{y \cdot Hy} \Big( \frac{s}{y \cdot s} - \frac{Hy}{y \cdot Hy} \Big)

and differ in the two numbers τ and φ. Whatever they are, H₊y = s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from adaqn.core.checks import at_least_one
from adaqn.core.direction import InitialScaling, applied

LARGEST = 10_000
"""The most weights that have a full matrix: 800 MB of float64."""
_BLOCK_ON_CPU = (
    1 << 18
)  # elements of a block of rows: 2 MiB of float64, which stay in the cache between scaling and sum
_BLOCK_ELSEWHERE = 1 << 30

Rule = Callable[[float, float, int, bool], tuple[float, float]]
"""(b, h, n, first) → τ and φ, with b = s·H⁻¹s/y·s and h = y·Hy/y·s; ``first`` where H is still the H0 it began from."""


def bfgs(b: float, h: float, n: int, first: bool = False) -> tuple[float, float]:
    """τ = φ = 1. The first pair also sets the scale of H0, by τ = h: γ of L-BFGS.

    >>> bfgs(2.0, 3.0, n=5), bfgs(2.0, 3.0, n=5, first=True)
    ((1.0, 1.0), (3.0, 1.0))
    """
    return (h if first else 1.0), 1.0


def ssbfgs(b: float, h: float, n: int, first: bool = False) -> tuple[float, float]:
    """τ = min(1, 1/b), φ = 1 (eq. 11): where H⁻¹ has more curvature along s than was measured, it shrinks as a whole.

    >>> ssbfgs(2.0, 3.0, n=5), ssbfgs(0.5, 3.0, n=5)
    ((0.5, 1.0), (1.0, 1.0))
    """
    return (h if first else min(1.0, 1.0 / b)), 1.0


def ssbroyden(b: float, h: float, n: int, first: bool = False) -> tuple[float, float]:
    """τ and φ of Al-Baali and Khalfan's wide interval (eq. 13 to 23).

    φ = (1 − θ)/σ with σ = 1 + aθ and a = bh − 1, which is never negative; θ is (1 − b)/b in the bounds between which
    H₊ stays well conditioned. Two of the printed terms are differences of nearly equal numbers where a or b is large,
    and are computed as what they equal: ρ⁻ = min(1, h(1 − c)) as min(1, 1/(b + bc)), and σ as ρ⁻ + a(θ − θ⁻), which
    is never below ρ⁻. θ⁻ has a limit where a is 0, as it is for s and Hy of one direction.

    >>> ssbroyden(1.0, 1.0, n=5)  # the pair says what H said
    (1.0, 1.0)
    """
    a = max(b * h - 1.0, 0.0)
    c = math.sqrt(a / (b * h))
    rho = min(1.0, 1.0 / (b + b * c))
    least = (rho - 1.0) / a if a > 0.0 else (-math.inf if rho < 1.0 else 0.0)
    theta = max(least, min(1.0 / rho, (1.0 - b) / b))
    sigma = rho + a * (theta - least) if a > 0.0 else 1.0
    root = sigma ** (-1.0 / (n - 1)) if n > 1 else 1.0
    if first:
        tau = h / sigma
    elif theta > 0.0:
        tau = min(1.0, 1.0 / b) * min(root, 1.0 / theta)
    else:
        tau = min(min(1.0, 1.0 / b) * root, sigma)
    return tau, (1.0 - theta) / sigma


UPDATES: dict[str, Rule] = {"bfgs": bfgs, "ssbfgs": ssbfgs, "ssbroyden": ssbroyden}


def along_the_line(t: float, slope: float) -> float:
    """s·H⁻¹s for the step s = −t·Hg, whose H⁻¹s is −t·g: with φ′(0) = −g·Hg it is −t²φ′(0).

    >>> along_the_line(0.5, slope=-8.0)
    2.0
    """
    return -t * t * slope


def update_(H: Tensor, s: Tensor, y: Tensor, rule: Rule, s_inverse_s: float, *, first: bool = False) -> bool:
    """H ← H₊ in place, in two passes over H: one for H·y, one for the sum. False, and H as it was, for an unfit pair.

    Args:
        H: n × n, symmetric and positive definite, before and after.
        s: the step.
        y: the change of the gradient along it, with s·y > 0.
        rule: one of :data:`UPDATES`.
        s_inverse_s: s·H⁻¹s, which a line search along −Hg knows without a product: :func:`along_the_line`.
        first: is this the first pair of this H? Then it also sets its scale.

    >>> H = torch.eye(2, dtype=torch.float64)
    >>> s, y = torch.tensor([1.0, 0.0]), torch.tensor([4.0, 2.0])
    >>> update_(H, s, y, bfgs, s_inverse_s=1.0)
    True
    >>> torch.allclose(H.mv(y.double()), s.double())
    True
    """
    s, y = s.to(H.dtype), y.to(H.dtype)
    Hy = H.mv(y)
    sy, yHy = torch.stack([s @ y, y @ Hy]).tolist()
    if not all(math.isfinite(x) and x > 0.0 for x in (sy, yHy, s_inverse_s)):
        return False
    b, h = s_inverse_s / sy, yHy / sy
    if not all(0.0 < x < math.inf for x in (b, h, b * h)):  # of pairs at the ends of the range of numbers
        return False
    tau, phi = rule(b, h, len(H), first)
    if not (0.0 < tau < math.inf and 1.0 / tau < math.inf and math.isfinite(phi)):
        return False
    v = torch.add(s / sy, Hy, alpha=-1.0 / yHy)
    weights = [-1.0 / tau / yHy, phi * yHy / tau, 1.0 / sy]
    # Each term is a root times itself: H(i, j) and H(j, i) are the same products.
    rows = torch.stack([math.sqrt(abs(w)) * x for w, x in zip(weights, (Hy, v, s), strict=True)])
    if not bool(rows.isfinite().all()):
        return False
    signed = rows * torch.tensor([math.copysign(1.0, w) for w in weights], dtype=H.dtype, device=H.device)[:, None]
    for block in _blocks(H):
        H[block].addmm_(signed[:, block].t(), rows, beta=1.0 / tau)
    return True


def identity(n: int, device: torch.device | None = None) -> Tensor:
    """The matrix to begin from where nothing is known."""
    return torch.eye(affordable(n), dtype=torch.float64, device=device)


def from_operator(h0: InitialScaling, n: int, like: Tensor) -> Tensor:
    """The matrix of H0, by n applications to unit vectors of the dtype and device of ``like``.

    An operator that is symmetric up to rounding becomes a matrix that is symmetric.
    """
    return fill_(torch.empty(affordable(n), n, dtype=torch.float64, device=like.device), h0, like)


def fill_(H: Tensor, h0: InitialScaling, like: Tensor) -> Tensor:
    """H ← the matrix of H0, in place: beside H there are a few vectors and one block of its rows."""
    n = len(H)
    unit, out = like.new_zeros(n), like.new_empty(n)
    for i in range(n):
        H[i] = applied(h0, unit.index_fill_(0, torch.tensor([i], device=like.device), 1.0), out)
        unit.zero_()
    # Every row of a block with its column, up to the diagonal and within the block.
    for block in _blocks(H, max(_BLOCK_ON_CPU, H.numel() // 32)):
        before = slice(0, block.stop)
        mean = (H[block, before] + H[before, block].t()).mul_(0.5)
        H[block, before], H[before, block] = mean, mean.t()
    return H


def affordable(n: int) -> int:
    """n, where a full matrix of it is within the limit."""
    if at_least_one("the number of weights", n) > LARGEST:
        raise ValueError(
            f"a full matrix of {n:,} weights takes {8e-9 * n * n:.1f} GB, and the limit is {LARGEST:,} weights or "
            f"{8e-9 * LARGEST**2:.1f} GB: use L-BFGS, whose memory grows with n alone"
        )
    return n


def _blocks(H: Tensor, largest: int = _BLOCK_ELSEWHERE) -> Iterator[slice]:
    """Blocks of rows."""
    size = _BLOCK_ON_CPU if H.device.type == "cpu" else largest
    height = max(1, size // len(H))
    yield from (slice(start, min(start + height, len(H))) for start in range(0, len(H), height))
