"""Blocks of one shape as one stack of matrices: what is done to them is one operation, not one for each.

The factors of a stack are views of memory in which they lie one behind the other. A vector as long as all parameters
is cut into pieces first, once for all stacks; a stack gathers its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from adaqn.core.blocks import Block

SIDES = ("left", "right")
LARGEST = 2**22
"""Numbers in a stack of more than one matrix: its temporaries have as many each."""


@dataclass(frozen=True)
class Member:
    """A block of a parameter with its factors, by side; a side of length 1 has none.

    ``start`` is where the parameter, a matrix of ``height`` × ``width``, begins in a vector.
    """

    parameter: int
    block: Block
    start: int
    height: int
    width: int
    averages: tuple[Tensor | None, Tensor | None]
    bases: tuple[Tensor | None, Tensor | None]

    @property
    def offset(self) -> int:
        return self.start + self.block.rows[0] * self.width + self.block.columns[0]

    @property
    def is_contiguous(self) -> bool:
        return self.block.shape[1] == self.width

    def of(self, vector: Tensor) -> Tensor:
        """Its part of a vector, a view."""
        return vector.as_strided(self.block.shape, (self.width, 1), vector.storage_offset() + self.offset)

    def tensors(self) -> Iterator[Tensor]:
        yield from (t for t in (*self.averages, *self.bases) if t is not None)

    def precedes(self, other: Member) -> bool:
        """Does the other one follow in the memory of every factor, so that both can be in one stack?"""
        same = self.block.shape == other.block.shape and self.block.bare == other.block.bare
        same = same and self.is_contiguous == other.is_contiguous
        together = self.is_contiguous or (self.parameter, self.block.rows) == (other.parameter, other.block.rows)
        return same and together and all(map(_adjacent, self.tensors(), other.tensors()))


class Stack:
    """Members that precede one another, as k × p × q.

    Args:
        members: the blocks.
        pieces: the pieces of a vector in which they lie, in this order; blocks of a matrix whose columns are cut lie in
            one piece, the whole matrix.
        lengths: of those pieces.
    """

    def __init__(self, members: Sequence[Member], pieces: Sequence[int], lengths: Sequence[int]) -> None:
        self.members, self.pieces, self.lengths = list(members), list(pieces), list(lengths)
        self.shape = (len(self.members), *self.members[0].block.shape)
        self.is_view = len(self.pieces) == 1
        """Is what ``gather`` gives a view?"""
        self.averages = _stacked([m.averages[0] for m in members]), _stacked([m.averages[1] for m in members])
        self.bases = _stacked([m.bases[0] for m in members]), _stacked([m.bases[1] for m in members])

    def gather(self, pieces: Sequence[Tensor]) -> Tensor:
        """A view where the blocks lie side by side, and otherwise a copy."""
        parts = self.inside(pieces)
        return parts[0].view(self.shape) if self.is_view else torch.cat(parts).view(self.shape)

    def inside(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Where the blocks lie, as views."""
        first, found = self.members[0], [pieces[i] for i in self.pieces]
        if first.is_contiguous:
            return found
        start = found[0].storage_offset() + first.offset - first.start
        return [found[0].as_strided(self.shape, (self.shape[2], first.width, 1), start)]

    def parts(self, stacked: Tensor) -> list[Tensor]:
        """A stack cut as ``inside`` is."""
        if not self.members[0].is_contiguous:
            return [stacked]
        return [stacked.view(-1)] if len(self.pieces) == 1 else list(torch.split(stacked.view(-1), self.lengths))

    def scatter(self, stacked: Tensor, pieces: Sequence[Tensor]) -> None:
        """Write a stack to where its blocks lie."""
        torch._foreach_copy_(self.inside(pieces), self.parts(stacked))


class Stacks:
    """All stacks of some parameters, and the rest, which has no bases.

    Args:
        members: the blocks of these parameters.
        rest: where the others of them lie in a vector, as (start, stop).
        n: the length of a vector.
    """

    def __init__(self, members: Sequence[Member], rest: Sequence[tuple[int, int]], n: int) -> None:
        groups = list(_neighbours(sorted(members, key=_position)))
        places = [_places(group) for group in groups]
        bounds = sorted({0, n, *(end for place in (*places, [*rest]) for part in place for end in part)})
        index = {start: i for i, start in enumerate(bounds)}
        self._lengths = [stop - start for start, stop in pairwise(bounds)]
        self.stacks = [
            Stack(group, [index[start] for start, _ in place], [stop - start for start, stop in place])
            for group, place in zip(groups, places, strict=True)
        ]
        self.rest = [index[start] for start, stop in rest if stop > start]
        self.parameters = sorted({member.parameter for member in members})
        self.averages = [average for stack in self.stacks for average in stack.averages if average is not None]

    def split(self, vector: Tensor) -> Sequence[Tensor]:
        """A vector in the pieces that stacks gather."""
        return torch.split(vector, self._lengths) if len(self._lengths) != 1 else (vector,)


def members_of(
    parameter: int, blocks: Sequence[Block], start: int, shape: tuple[int, int], tensors: dict[str, Tensor]
) -> list[Member]:
    """The blocks of a matrix that begins at ``start``, with views of their factors."""
    found: dict[str, list[Tensor | None]] = {}
    for name, tensor in tensors.items():
        lengths = [block.sides[name.startswith("right")] for block in blocks]
        pieces = torch.split(tensor.view(-1), [n * n if n > 1 else 0 for n in lengths])
        found[name] = [p.view(n, n) if n > 1 else None for p, n in zip(pieces, lengths, strict=True)]
    none: list[Tensor | None] = [None] * len(blocks)
    of = {name: found.get(name, none) for name in ("left_average", "right_average", "left_basis", "right_basis")}
    averages = zip(of["left_average"], of["right_average"], strict=True)
    bases = zip(of["left_basis"], of["right_basis"], strict=True)
    return [Member(parameter, *one[:1], start, *shape, *one[1:]) for one in zip(blocks, averages, bases, strict=True)]


def _position(member: Member) -> int:
    """Where its factors lie in their memory."""
    return next((int(tensor.storage_offset()) for tensor in member.tensors()), -1)


def _neighbours(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Those that can be in one stack."""
    group: list[Member] = []
    for member in members:
        size = math.prod(member.block.shape) * (len(group) + 1)
        if group and not (size <= LARGEST and group[-1].precedes(member)):
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _places(group: Sequence[Member]) -> list[tuple[int, int]]:
    """Where they lie in a vector, neighbours as one."""
    first, size = group[0], math.prod(group[0].block.shape)
    if not first.is_contiguous:
        return [(first.start, first.start + first.height * first.width)]
    found: list[tuple[int, int]] = []
    for member in group:
        if found and found[-1][1] == member.offset:
            found[-1] = (found[-1][0], member.offset + size)
        else:
            found.append((member.offset, member.offset + size))
    return found


def _adjacent(a: Tensor, b: Tensor) -> bool:
    same = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    return same and a.storage_offset() + a.numel() == b.storage_offset()


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Adjacent matrices as one tensor."""
    first = tensors[0]
    if first is None:
        return None
    n = first.shape[0]
    return first.as_strided((len(tensors), n, n), (n * n, n, 1), first.storage_offset())
