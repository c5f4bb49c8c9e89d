"""Vectors of which each process has an equal slice: ``shard_history`` with an H0 that may be cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaqn.core.direction import applied
from adaqn.core.scaling import Scaling
from adaqn.parameters.flat import FlatParameters, as_real
from adaqn.parameters.processes import Group, Processes
from adaqn.parameters.shards import FlatParts

BUCKET = 8_000_000
"""How many numbers are exchanged at a time: what is gathered lies in memory once more until it is copied."""


class FlatSlices(FlatParts):
    """Parameters that every process has whole, and vectors that hold a slice of each: ``shard_history``.

    Each parameter is cut by the number of its elements, so that its saved history is a DTensor of shape
    ``(rows, numel)`` that knows what it holds. Each process moves its own slices of the weights, and
    :meth:`publish` gives them to all.
    """

    def __init__(self, params: Sequence[Tensor], processes: Processes | None = None) -> None:
        self.processes = processes or Processes()
        check_contiguous(params)
        super().__init__(params, processes)
        self.whole = FlatParameters(params, processes)
        self.whole_sizes = self.whole.sizes
        dtypes = {p.dtype.to_real() for p in self.params}
        self._sent_as = dtypes.pop() if len(dtypes) == 1 else self.dtype
        ranks = range(self.processes.count)
        self._sizes = [[stop - start for start, stop in self._bounds(rank)] for rank in ranks]
        self._buckets = buckets(self.whole_sizes, BUCKET)

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flattened = [as_real(tensor).reshape(-1) for tensor in tensors]
        bounds = (slice_bounds(vector.numel(), self.processes.rank, self.processes.count) for vector in flattened)
        return [vector[start:stop] for vector, (start, stop) in zip(flattened, bounds, strict=True)]

    def shown(self, index: int, view: Tensor) -> Tensor:
        if not isinstance(self.processes, Group):
            return view
        from adaqn.parameters.dtensors import sliced

        return sliced(self.processes, view, self.whole_sizes[index])

    def saved_shape(self, index: int) -> tuple[int, ...]:
        return (self.whole_sizes[index],)

    def for_scaling(self, scaling: Scaling) -> FlatParameters:
        """Whole vectors for an H0 of whole matrices: every process has the gradients, and the rest is gathered."""
        return self.whole if needs_matrices(scaling) else self

    @torch.no_grad()
    def publish(self) -> None:
        self._exchange(self.reals(), [as_real(p).view(-1) for p in self.params], self._sent_as)

    def gather_whole(self, vector: Tensor, out: Tensor) -> Tensor:
        """out ← the whole vector, of which ``vector`` is the part that lies here."""
        parts, wholes = torch.split(vector, self.sizes), torch.split(out, self.whole_sizes)
        torch._foreach_copy_(self.parts(wholes), list(parts))
        self._exchange(parts, wholes, vector.dtype)
        return out

    def cut(self, whole: Tensor, out: Tensor) -> Tensor:
        """out ← the part of a whole vector that lies here."""
        torch._foreach_copy_(list(torch.split(out, self.sizes)), self.parts(torch.split(whole, self.whole_sizes)))
        return out

    def _exchange(self, parts: Sequence[Tensor], wholes: Sequence[Tensor], dtype: torch.dtype) -> None:
        """The parts of all processes into the whole tensors, which have this one's already."""
        if not isinstance(self.processes, Group):
            return
        for first, last in self._buckets:
            row = torch.zeros(max(sum(sizes[first:last]) for sizes in self._sizes), dtype=dtype, device=self.device)
            own = self._sizes[self.processes.rank][first:last]
            torch._foreach_copy_(list(torch.split(row[: sum(own)], own)), list(parts[first:last]))
            for rank, theirs in enumerate(self.processes.gathered(row)):
                if rank != self.processes.rank:
                    sizes, bounds = self._sizes[rank][first:last], self._bounds(rank)[first:last]
                    targets = [w[start:stop] for w, (start, stop) in zip(wholes[first:last], bounds, strict=True)]
                    torch._foreach_copy_(targets, list(torch.split(theirs[: sum(sizes)], sizes)))

    def _bounds(self, rank: int) -> list[tuple[int, int]]:
        return [slice_bounds(size, rank, self.processes.count) for size in self.whole_sizes]


class WholeH0:
    """H0 of whole matrices between vectors of which each process has a part: every process keeps and applies all of it.

    What it is applied to is gathered, one vector on the wire; what it learns from, every process has.
    """

    def __init__(self, scaling: Scaling, flat: FlatSlices) -> None:
        self.scaling, self.flat = scaling, flat
        self.before, self.after = flat.whole.new(), flat.whole.new()

    def learn(self, ok: Tensor, *, negated: bool) -> None:
        """See the gradients of this step, unless ``ok`` is 0."""
        whole = self.flat.whole
        present = whole.gather_gradients(whole.views(self.before))
        if negated:
            self.before.neg_()
        self.scaling.see(self.before.nan_to_num_(0.0, 0.0, 0.0).mul_(ok), present, ok)

    def learn_from(self, gradient: Tensor, present: Sequence[int]) -> None:
        """See a gradient of which each process has a part."""
        self.scaling.see(self.flat.gather_whole(gradient, out=self.before), present)

    def learn_pair(self, s: Tensor, y: Tensor, rms: float) -> None:
        """See a pair of which each process has a part."""
        whole_s = self.flat.gather_whole(s, out=self.before)
        self.scaling.learn(whole_s, self.flat.gather_whole(y, out=self.after), rms)

    def square(self, v: Tensor) -> Tensor:
        """v·H0 v, of this process's part of v."""
        return v.dot(self.apply(v, torch.empty_like(v)))

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        whole = self.flat.gather_whole(v, out=self.before)
        return self.flat.cut(applied(self.scaling, whole, self.after), out)

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        whole = self.flat.gather_whole(v, out=self.before)
        return self.flat.cut(self.scaling.apply_inverse(whole, out=self.after), out)


def needs_matrices(scaling: Scaling) -> bool:
    """Does this H0 mix the numbers of a vector?"""
    return not scaling.elementwise or bool(scaling.tensor_shapes((2, 2)))


def check_contiguous(params: Sequence[Tensor]) -> None:
    for index, p in enumerate(params):
        if not p.is_contiguous():
            raise ValueError(
                f"parameter {index} of shape {tuple(p.shape)} is not contiguous, and shard_history cuts "
                "parameters by the order of their elements: make it contiguous, or leave out shard_history"
            )


def buckets(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Neighbours that are exchanged in one message, as (first, last + 1): of at most so many numbers, or alone.

    >>> buckets([3, 4, 20, 1, 1], 8)
    [(0, 2), (2, 3), (3, 5)]
    """
    found, first, total = [], 0, 0
    for index, size in enumerate(sizes):
        if index > first and total + size > most:
            found.append((first, index))
            first, total = index, 0
        total += size
    return [*found, (first, len(sizes))]


def slice_bounds(size: int, rank: int, count: int) -> tuple[int, int]:
    """Where the slice of that process begins and ends: equal slices, the last ones shorter or empty.

    >>> [slice_bounds(10, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    length = -(-size // count)
    return min(rank * length, size), min((rank + 1) * length, size)
