"""Vectors of which each process has whole blocks, for DDP with ``shard_history`` and an H0 of blocks.

H0 is block-diagonal: whoever has a block of every vector needs nothing of the others to learn H0 there, and to apply
it. Blocks are dealt out so that each process has about the same number of numbers to keep.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor

from adaqn.core.blocks import Block
from adaqn.core.eigenbasis import matrix_shape
from adaqn.core.scaling import Scaling
from adaqn.parameters.exchange import from_slices, to_slices
from adaqn.parameters.flat import as_real
from adaqn.parameters.processes import Group, Processes, is_dtensor
from adaqn.parameters.shards import FlatParts
from adaqn.parameters.slices import BUCKET, buckets, check_contiguous


@dataclass(frozen=True)
class Grid:
    """The blocks of a parameter as a matrix; one that H0 has no blocks for is a single column."""

    matrix: tuple[int, int]
    blocks: list[Block]
    is_cut: bool
    """Has H0 matrices for it?"""

    def part(self, tensor: Tensor, block: Block) -> Tensor:
        """A block of a tensor shaped like the parameter: a view where that is contiguous."""
        (top, bottom), (first, last) = block.rows, block.columns
        return as_real(tensor).reshape(self.matrix)[top:bottom, first:last]

    def shape(self, block: Block) -> tuple[int, ...]:
        """Of a block as H0 sees it."""
        return block.shape if self.is_cut else (block.shape[0],)


def grid_of(shape: Sequence[int], scaling: Scaling) -> Grid:
    blocks = scaling.blocks(shape)
    if blocks is None:
        n = math.prod(shape)
        return Grid((n, 1), [Block((0, n), (0, 1))] if n else [], is_cut=False)
    return Grid(matrix_shape(shape), blocks, is_cut=True)


def deal(costs: Sequence[float], count: int) -> list[int]:
    """To which of ``count`` processes each goes: the largest first, to whoever has least.

    >>> deal([1.0, 5.0, 2.0, 3.0], 2)
    [0, 0, 1, 1]
    """
    loads = [(0.0, rank) for rank in range(count)]
    owners = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = heapq.heappop(loads)
        owners[index] = rank
        heapq.heappush(loads, (load + costs[index], rank))
    return owners


@dataclass(frozen=True)
class _Chunk:
    """What a process sends in one message: blocks, each with its parameter."""

    pieces: Sequence[tuple[int, Block]]
    size: int


_NOTHING = _Chunk((), 0)


def _chunks(pieces: Sequence[tuple[int, Block]]) -> list[_Chunk]:
    sizes = [math.prod(block.shape) for _, block in pieces]
    return [_Chunk(pieces[first:last], sum(sizes[first:last])) for first, last in buckets(sizes, BUCKET)]


class FlatBlocks(FlatParts):
    """Parameters that every process has whole, and vectors that hold the process's own blocks of each.

    Block by block, each row by row. What is saved is in the order of the parameter's elements, in equal slices, as
    with :class:`~adaqn.parameters.slices.FlatSlices`. Each process moves its own blocks of the weights in a copy of
    them, and :meth:`publish` gives them to all.
    """

    def __init__(self, params: Sequence[Tensor], processes: Processes | None, scaling: Scaling, vectors: int) -> None:
        """``vectors`` as long as the parameters are kept beside H0's matrices: the cost of a block goes by that."""
        check_contiguous(params)
        self.processes = processes or Processes()
        self.grids = [grid_of(as_real(p).shape, scaling) for p in params]
        every = [(i, block) for i, grid in enumerate(self.grids) for block in grid.blocks]
        costs = [_cost(self.grids[i].shape(block), scaling, vectors) for i, block in every]
        owners = deal(costs, self.processes.count)
        self.dealt: list[list[list[Block]]] = [[[] for _ in params] for _ in range(self.processes.count)]
        """By process and parameter."""
        for (i, block), rank in zip(every, owners, strict=True):
            self.dealt[rank][i].append(block)
        super().__init__(params, processes)
        self.whole_sizes = [math.prod(grid.matrix) for grid in self.grids]
        dtypes = {p.dtype.to_real() for p in self.params}
        self._sent_as = dtypes.pop() if len(dtypes) == 1 else self.dtype
        self.bytes_of_copy = self.n * self._sent_as.itemsize
        self._chunks = [_chunks([(i, b) for i, blocks in enumerate(dealt) for b in blocks]) for dealt in self.dealt]

    @cached_property
    def _own(self) -> Tensor:
        """The process's own blocks of the weights, in which they are moved."""
        with torch.inference_mode(False):
            return torch.zeros(self.n, dtype=self._sent_as, device=self.device)

    @property
    def mine(self) -> list[list[Block]]:
        """By parameter, the blocks that lie here."""
        return self.dealt[self.processes.rank]

    @property
    def _ranks(self) -> range:
        return range(self.processes.count)

    def part_shapes(self) -> list[torch.Size]:
        return [torch.Size([sum(math.prod(block.shape) for block in blocks)]) for blocks in self.mine]

    # ------------------------------------------------------------------ the weights

    def read(self, targets: list[Tensor], tensors: Sequence[Tensor], indices: Sequence[int]) -> None:
        into, found = [], []
        for i, target, tensor in zip(indices, targets, tensors, strict=True):
            blocks = self.mine[i]
            into += _cut(target, blocks)
            found += [self.grids[i].part(tensor, block) for block in blocks]
        if into:
            torch._foreach_copy_(into, found)

    def reals(self) -> list[Tensor]:
        """The process's own blocks of the weights, as they are now; what is changed in them is for :meth:`publish`."""
        found = list(torch.split(self._own, self.sizes))
        with torch.no_grad():
            self.read(found, self.params, range(len(self.params)))
        return found

    @torch.no_grad()
    def scatter(self, flat: Tensor) -> None:
        self._own.copy_(flat)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        start, here = 0, self.processes.rank
        for chunks in zip_longest(*self._chunks, fillvalue=_NOTHING):
            own = self._own[start : start + chunks[here].size]
            self._place(own, chunks[here])
            start += chunks[here].size
            if isinstance(self.processes, Group):
                row = own.new_zeros(max(chunk.size for chunk in chunks))
                row[: len(own)] = own
                for rank, theirs in enumerate(self.processes.gathered(row)):
                    if rank != here:
                        self._place(theirs[: chunks[rank].size], chunks[rank])

    def _place(self, numbers: Tensor, chunk: _Chunk) -> None:
        """The weights of these blocks ← numbers."""
        if chunk.pieces:
            targets = [self.grids[i].part(self.params[i], block) for i, block in chunk.pieces]
            torch._foreach_copy_(targets, _cut(numbers, [block for _, block in chunk.pieces]))

    # ------------------------------------------------------------------ saving

    def positions(self, index: int) -> list[Tensor]:
        """By process, where the elements that it has of a parameter lie in it."""
        grid = self.grids[index]
        numbers = torch.arange(self.whole_sizes[index], device=self.device).view(grid.matrix)
        found = []
        for rank in self._ranks:
            blocks = [numbers[slice(*b.rows), slice(*b.columns)].reshape(-1) for b in self.dealt[rank][index]]
            found.append(torch.cat(blocks) if blocks else numbers.new_empty(0))
        return found

    def saved_shape(self, index: int) -> tuple[int, ...]:
        return (self.whole_sizes[index],)

    def saved(self, index: int, view: Tensor) -> Tensor:
        return to_slices(self.processes, view, self.positions(index), self.whole_sizes[index])

    def held(self, index: int, saved: Tensor, view: Tensor) -> Tensor:
        shape = (*view.shape[:-1], self.whole_sizes[index])
        if saved.shape != shape:
            saved = (saved.full_tensor() if is_dtensor(saved) else saved).reshape(shape)  # type: ignore[attr-defined]
        return from_slices(self.processes, saved, self.positions(index))


def _cost(shape: tuple[int, ...], scaling: Scaling, vectors: int) -> float:
    return vectors * math.prod(shape) + sum(map(math.prod, scaling.tensor_shapes(shape).values()))


def _cut(vector: Tensor, blocks: Sequence[Block]) -> list[Tensor]:
    """A vector as one view per block."""
    pieces = torch.split(vector, [math.prod(block.shape) for block in blocks])
    return [piece.view(block.shape) for piece, block in zip(pieces, blocks, strict=True)]
