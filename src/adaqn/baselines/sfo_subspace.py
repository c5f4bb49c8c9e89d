"""The subspace that all models of SFO live in: a few orthonormal directions of the space of parameters.

P is kept as rows, (K, n). Vectors as long as the parameters stay in the parameters' dtype and on
their device; coordinates in the subspace are float64 on the CPU, where small matrices belong.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK_BYTES = 1 << 24
"""Work space of a change of basis; the rows themselves may fill most of the memory."""


class Subspace:
    """The span of the first ``size`` rows of ``basis``; it grows by ``include`` and shrinks by ``collapse``.

    Rows as many as columns are the identity, and then nothing ever changes.

    >>> space = Subspace(torch.zeros(2, 3))
    >>> space.include(torch.tensor([0.0, 3.0, 4.0]))
    >>> space.project(torch.tensor([1.0, 0.6, 0.8]))
    tensor([1.], dtype=torch.float64)
    """

    def __init__(self, basis: Tensor, size: int = 0) -> None:
        self.basis = basis
        self.size = size
        if self.whole:
            self.size = basis.shape[1]
            basis.copy_(torch.eye(self.size, dtype=basis.dtype))
        # What is left of a direction that lies in the span, but for rounding.
        self.tolerance = 100.0 * torch.finfo(basis.dtype).eps

    @property
    def whole(self) -> bool:
        return self.basis.shape[0] == self.basis.shape[1]

    @property
    def room(self) -> int:
        """How many directions more it can take."""
        return self.basis.shape[0] - self.size

    @property
    def rows(self) -> Tensor:
        return self.basis[: self.size]

    def project(self, v: Tensor) -> Tensor:
        """P v."""
        return coordinates(v) if self.whole else coordinates(self.rows @ v)

    def lift(self, c: Tensor) -> Tensor:
        """Pᵀ c."""
        c = c.to(self.basis)
        return c if self.whole else self.rows.t() @ c

    def include(self, v: Tensor) -> None:
        """Add what of v points out of the span as a new direction, if it is more than rounding."""
        length = norm(v)
        if self.whole or length == 0.0:
            return
        rest = v / length
        for _ in range(3):  # one pass of Gram-Schmidt leaves rounding errors that the next removes
            rest = rest - self.lift(self.project(rest))
            length = norm(rest)
            if length < self.tolerance:
                return
            rest = rest / length
            if length > 0.5:
                break
        self.basis[self.size] = rest
        self.size += 1

    def clear(self) -> None:
        """No directions any more, but for all of them."""
        if not self.whole:
            self.basis.zero_()
            self.size = 0

    def collapse(self, keep: Tensor) -> Tensor:
        """Shrink to the span of ``keep``, rows of coordinates; returns T, with new coordinates = T · old ones.

        T has orthonormal rows: what lies in the span of ``keep`` is kept exactly, the rest is projected.
        """
        keep = keep[torch.linalg.vector_norm(keep, dim=1) > 0.0]
        # Householder: each row of its own accuracy, however different their lengths, and no matter the rank.
        T: Tensor = torch.linalg.qr(keep.t()).Q.t().contiguous()
        old, self.size = self.rows, len(T)
        _multiply(T, old, self.rows)
        # One Newton step to the nearest orthonormal rows, or errors would add up over many collapses.
        gram = (self.rows @ self.rows.t()).to("cpu", torch.float64)
        _multiply(1.5 * torch.eye(self.size, dtype=torch.float64) - 0.5 * gram, self.rows, self.rows)
        return T


def coordinates(v: Tensor) -> Tensor:
    return v.to("cpu", torch.float64)


def norm(v: Tensor) -> float:
    """‖v‖, without overflow of float32."""
    return float(torch.linalg.vector_norm(v, dtype=torch.float64))


def _multiply(matrix: Tensor, rows: Tensor, out: Tensor) -> None:
    """out ← matrix · rows, some columns at a time; ``out`` may be the first of the rows."""
    matrix = matrix.to(rows)
    columns = max(1, _CHUNK_BYTES // (rows.shape[0] * rows.element_size()))
    for source, target in zip(torch.split(rows, columns, dim=1), torch.split(out, columns, dim=1), strict=True):
        target.copy_(matrix @ source)
