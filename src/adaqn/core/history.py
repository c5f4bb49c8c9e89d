"""Memory of the past: rings of vectors, curvature pairs, and the running average of iterates.

Letters as in the paper: S and Y hold the pairs (s, y), oldest first; ρ = 1/s·y.
Buffers are handed in, so that their owner decides where they live and how they are saved.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from adaqn.core.products import Reduce, dots, local, round_to

LARGEST_INVERSE = 1e150
"""Entries of R⁻¹ beyond this would overflow in a direction."""


class Ring:
    """The last ``capacity`` vectors in one ``(capacity, n)`` tensor; the oldest is overwritten.

    The valid rows are always ``data[:size]``; ``order`` lists them oldest first.

    >>> ring = Ring(torch.zeros(2, 1))
    >>> for value in (1.0, 2.0, 3.0):
    ...     _ = ring.push(torch.tensor([value]))
    >>> [float(ring.data[slot]) for slot in ring.order]
    [2.0, 3.0]
    """

    def __init__(self, data: Tensor) -> None:
        self.data = data
        self.start = 0
        self.size = 0

    @property
    def capacity(self) -> int:
        return self.data.shape[0]

    @property
    def rows(self) -> Tensor:
        """The valid rows as they lie in memory, which is not the order of their age."""
        return self.data[: self.size]

    @property
    def order(self) -> list[int]:
        return [(self.start + i) % self.capacity for i in range(self.size)]

    def push(self, vector: Tensor) -> int:
        """Store a copy; returns the slot that it took."""
        slot = (self.start + self.size) % self.capacity
        self.data[slot].copy_(vector)
        if self.size < self.capacity:
            self.size += 1
        else:
            self.start = (self.start + 1) % self.capacity
        return slot

    def clear(self) -> None:
        self.start = self.size = 0


class Pairs:
    """Curvature pairs, with S·Yᵀ kept up to date at one product per stored pair.

    ``gram[i, j]`` is s_i·y_j by slot, in float64. What a direction needs of it changes only when a
    pair is stored, so it is prepared then: with R the upper triangle of s_i·y_j by age, ``inverse`` is
    R⁻¹ with its rows and columns by slot, found by substitution in float64, and ``D`` the s_i·y_i. Where
    R has no inverse within the range of numbers, the new pair stays alone.
    """

    def __init__(self, s: Tensor, y: Tensor, gram: Tensor, reduce: Reduce = local) -> None:
        self._s, self._y = Ring(s), Ring(y)
        self.gram = gram
        self._reduce = reduce
        self._prepare()

    def __len__(self) -> int:
        return self._s.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(s, y, s·y) oldest first."""
        for slot in self._s.order:
            yield self._s.data[slot], self._y.data[slot], self.gram[slot, slot]

    @property
    def S(self) -> Tensor:
        return self._s.rows

    @property
    def Y(self) -> Tensor:
        return self._y.rows

    @property
    def start(self) -> int:
        return self._s.start

    @property
    def order(self) -> list[int]:
        """The slots, oldest first."""
        return self._s.order

    def push(self, s: Tensor, y: Tensor) -> None:
        """Store copies; y comes back rounded as it was stored."""
        slot = self._s.push(s)
        self._y.push(y)
        round_to(self.Y.dtype, y)
        # Only s_i·y_j with j the younger of the two is ever used: the new y against all s.
        self.gram[: len(self), slot] = self._reduce(dots(self.S, y))
        self._prepare()
        if len(self) > 1 and not self._is_solvable():
            self.clear()
            self.push(s, y)

    def clear(self) -> None:
        self._s.clear()
        self._y.clear()
        self._prepare()

    def restore(self, start: int, size: int) -> None:
        """Take over buffers that a checkpoint has filled."""
        self._s.start = self._y.start = start
        self._s.size = self._y.size = size
        self._prepare()

    def _is_solvable(self) -> bool:
        return bool((self.inverse.abs() < LARGEST_INVERSE).all())  # false for nan as well

    def recompute(self) -> None:
        """S·Yᵀ anew, where rows were rounded since it was made."""
        for slot in range(len(self)):
            y = self.Y[slot].to(torch.promote_types(torch.float32, self.Y.dtype))
            self.gram[: len(self), slot] = self._reduce(dots(self.S, y))
        self._prepare()

    @torch.inference_mode(False)
    def _prepare(self) -> None:
        order = torch.tensor(self._s.order, dtype=torch.long, device=self.gram.device)
        self.R = self.gram[order][:, order].triu()
        identity = torch.eye(len(self), dtype=torch.float64, device=self.gram.device)
        inverse: Tensor = torch.linalg.solve_triangular(self.R, identity, upper=True)
        by_slot = torch.argsort(order)
        self.inverse = inverse[by_slot][:, by_slot].contiguous()
        self.D = self.gram.diagonal()[: len(self)].clone()


class Average:
    """The running sum of iterates (the paper's w_s) and how many it holds."""

    def __init__(self, total: Tensor) -> None:
        self.total = total
        self.count = 0

    def mean(self, out: Tensor) -> Tensor:
        return torch.div(self.total, self.count, out=out)  # Alg. 1, l. 9; D1

    def clear(self) -> None:
        self.count = 0
        self.total.zero_()
