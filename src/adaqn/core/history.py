"""Memory of the past: rings of vectors, curvature pairs, and the running average of iterates.

Letters as in the paper: S and Y hold the pairs (s, y), oldest first; ρ = 1/s·y.
Buffers are handed in, so that their owner decides where they live and how they are saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
        self._unknown = torch.zeros(1, dtype=torch.float64, device=data.device)
        """How many vectors :meth:`push_if` has stored that the host does not know of."""

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

    @property
    def next_slot(self) -> int:
        return (self.start + self.size) % self.capacity

    def push(self, vector: Tensor) -> int:
        """Store a copy; returns the slot that it took."""
        slot = self.next_slot
        self.data[slot].copy_(vector)
        self._advance(1)
        return slot

    def push_if(self, vector: Tensor, ok: Tensor, scratch: Tensor) -> None:
        """Store a copy if ``ok`` is 1 and nothing if it is 0, without the host knowing: :meth:`settle` tells it later.

        ``scratch`` is a vector whose content nobody needs.
        """
        data, ok = self.data, ok.to(self.data.device)
        slot = ((self._unknown + self.next_slot) % self.capacity).long()
        fits = (scratch.dtype, scratch.device) == (data.dtype, data.device)
        row = torch.index_select(data, 0, slot, **({"out": scratch[None]} if fits else {}))
        row.lerp_(vector.to(row)[None], ok.to(row))  # where it is 0, the row stays what it was
        data.index_put_((slot,), row)
        self._unknown += ok

    def settle(self, count: int) -> None:
        """The host learns that :meth:`push_if` has stored so many vectors."""
        self._advance(count)
        self._unknown.zero_()

    def _advance(self, count: int) -> None:
        overwritten = max(0, self.size + count - self.capacity)
        self.start = (self.start + overwritten) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def clear(self) -> None:
        self.start = self.size = 0
        self._unknown.zero_()


class Solved(NamedTuple):
    """What a direction needs of the products of the pairs."""

    R: Tensor
    """The upper triangle of s_i·y_j by age."""
    inverse: Tensor
    """R⁻¹ with its rows and columns by slot."""
    D: Tensor
    """The s_i·y_i by slot."""


@torch.inference_mode(False)
def _solved(gram: Tensor, order: Sequence[int]) -> Solved:
    by_age = torch.tensor(order, dtype=torch.long, device=gram.device)
    R = gram[by_age][:, by_age].triu()
    identity = torch.eye(len(order), dtype=torch.float64, device=gram.device)
    inverse: Tensor = torch.linalg.solve_triangular(R, identity, upper=True)
    by_slot = torch.argsort(by_age)
    return Solved(R, inverse[by_slot][:, by_slot].contiguous(), gram.diagonal()[: len(order)].clone())


class Draft(NamedTuple):
    """A pair that is not stored yet, and what the memory would be with it."""

    s: Tensor
    y: Tensor
    gram: Tensor
    solved: Solved
    told: Tensor
    """What decides whether it is stored: s·y, and 1 if R has an inverse within the range of numbers, 0 if not."""


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
        """Store copies; y comes back rounded as it was stored. One read from the device."""
        round_to(self.Y.dtype, y)
        s = s.to(self.S.dtype).to(s.dtype)
        draft = self.draft(s, y, self._reduce(self.products_with(s, y)))
        self.store(draft, alone=len(self) > 0 and not bool(draft.told[1]))

    def products_with(self, s: Tensor, y: Tensor) -> Tensor:
        """s_i·y of every s in memory, by slot, and s·y behind them: what this process has of them."""
        return torch.cat([dots(self.S, y), s.dot(y).double().reshape(1)])

    def beside_newest(self, s: Tensor) -> Tensor:
        """s₋·s₋ and s₋·s for s₋ of the newest pair: what this process has of them; zeros where there is none."""
        if len(self) == 0:
            return torch.zeros(2, dtype=torch.float64, device=self.gram.device)
        newest = self.S[self.order[-1]].to(s.dtype)
        return torch.stack([newest.dot(newest), newest.dot(s)]).double()

    def draft(self, s: Tensor, y: Tensor, products: Tensor) -> Draft:
        """What the memory would be with this pair, rounded as it would be stored; nothing is changed or read.

        ``products`` are :meth:`products_with` over all processes.
        """
        slot = self._s.next_slot
        gram = self.gram.clone()
        # Only s_i·y_j with j the younger of the two is ever used: the new y against all s.
        gram[: len(self), slot] = products[:-1]
        gram[slot, slot] = products[-1]
        order = [*(i for i in self.order if i != slot), slot]
        solved = _solved(gram, order)
        is_solvable = (solved.inverse.abs() < LARGEST_INVERSE).all()  # false for nan as well
        return Draft(s, y, gram, solved, torch.stack([products[-1], is_solvable.double()]))

    def store(self, draft: Draft, *, alone: bool = False) -> None:
        """Store the pair; ``alone`` where the others cannot stay beside it (``told``)."""
        if alone:
            self.clear()
        slot = self._s.push(draft.s)
        self._y.push(draft.y)
        if alone:
            self.gram[slot, slot] = draft.told[0]
            self._prepare()
        else:
            self.gram.copy_(draft.gram)
            self._solved = draft.solved

    def clear(self) -> None:
        self._s.clear()
        self._y.clear()
        self._prepare()

    def restore(self, start: int, size: int) -> None:
        """Take over buffers that a checkpoint has filled."""
        self._s.start = self._y.start = start
        self._s.size = self._y.size = size
        self._prepare()

    def recompute(self) -> None:
        """S·Yᵀ anew, where rows were rounded since it was made."""
        for slot in range(len(self)):
            y = self.Y[slot].to(torch.promote_types(torch.float32, self.Y.dtype))
            self.gram[: len(self), slot] = self._reduce(dots(self.S, y))
        self._prepare()

    def _prepare(self) -> None:
        self._solved = _solved(self.gram, self.order)

    @property
    def R(self) -> Tensor:
        return self._solved.R

    @property
    def inverse(self) -> Tensor:
        return self._solved.inverse

    @property
    def D(self) -> Tensor:
        return self._solved.D


class Average:
    """The running sum of iterates (the paper's w_s); how many it holds is counted on the device."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def add(self, w: Tensor, ok: Tensor) -> None:
        """Alg. 1, l. 7; nothing where ``ok`` is 0, except that a w that is no number shows."""
        self.total.addcmul_(w, ok)

    def mean(self, count: Tensor, out: Tensor) -> Tensor:
        """Alg. 1, l. 9; D1. Of nothing it is zero."""
        return torch.div(self.total, count.clamp(min=1.0), out=out)

    def clear(self) -> None:
        self.total.zero_()
