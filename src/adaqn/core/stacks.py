"""Blocks of one shape as one stack of matrices: what is done to them is one operation, not one for each.

The factors of a stack are views of memory in which they lie at equal distances. A vector as long as all parameters
is cut into pieces first, once for all stacks; a stack gathers its own. Blocks at equal distances, and those of matrices
whose columns are cut, are seen through windows instead: rows of blocks, of matrices, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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

    @property
    def kind(self) -> tuple[Any, ...]:
        """What those in one stack have in common."""
        return self.block.shape, self.block.bare, self.is_contiguous

    def distances(self, other: Member) -> list[int] | None:
        """By factor, how far behind this one's the other one's lies; ``None`` where they are not of one memory."""
        both = list(zip(self.tensors(), other.tensors(), strict=True))
        if any(a.untyped_storage()._cdata != b.untyped_storage()._cdata for a, b in both):
            return None
        return [int(b.storage_offset()) - int(a.storage_offset()) for a, b in both]


@dataclass(frozen=True)
class Window:
    """Rows of numbers at equal distances, blocks of them at equal distances, and so on, the outermost first."""

    start: int
    counts: tuple[int, ...]
    steps: tuple[int, ...]


class Stack:
    """Members whose factors lie at equal distances, as k × p × q.

    Args:
        members: the blocks.
        pieces: the pieces of a vector in which they lie, in this order; none if the columns of their matrices are cut.
        lengths: of those pieces.
    """

    def __init__(self, members: Sequence[Member], pieces: Sequence[int], lengths: Sequence[int]) -> None:
        self.members, self.pieces, self.lengths = list(members), list(pieces), list(lengths)
        self.shape = (len(self.members), *self.members[0].block.shape)
        found = windows(members)
        self.is_view = len(self.pieces) == 1 or (len(found) == 1 and len(found[0].counts) <= 2)
        """Is what ``gather`` gives a view?"""
        by_pieces = len(self.pieces) == 1 or (bool(self.pieces) and not self.is_view)
        self.windows = [] if by_pieces else found
        self.averages = _stacked([m.averages[0] for m in members]), _stacked([m.averages[1] for m in members])
        self.bases = _stacked([m.bases[0] for m in members]), _stacked([m.bases[1] for m in members])

    def gather(self, pieces: Sequence[Tensor]) -> Tensor:
        """A view where the blocks lie side by side, and otherwise a copy."""
        parts = self.inside(pieces)
        if self.is_view:
            return parts[0] if parts[0].shape == self.shape else parts[0].view(self.shape)
        if not self.windows:
            return torch.cat(parts).view(self.shape)
        gathered = parts[0].new_empty(self.shape)
        torch._foreach_copy_(self.parts(gathered), parts)
        return gathered

    def inside(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Where the blocks lie, as views."""
        if not self.windows:
            return [pieces[i] for i in self.pieces]
        q, begin = self.shape[2], pieces[0].storage_offset()  # the first piece begins where the vector does
        return [pieces[0].as_strided((*w.counts, q), (*w.steps, 1), begin + w.start) for w in self.windows]

    def parts(self, stacked: Tensor) -> list[Tensor]:
        """A stack cut as ``inside`` is."""
        if not self.windows:
            return [stacked.view(-1)] if len(self.pieces) == 1 else list(torch.split(stacked.view(-1), self.lengths))
        _, p, q = self.shape
        if self.is_view and len(self.windows[0].counts) == 2:
            return [stacked]
        cut = torch.split(stacked, [math.prod(w.counts) // p for w in self.windows])
        return [part.view(*w.counts, q) for part, w in zip(cut, self.windows, strict=True)]

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
        groups = list(_neighbours(sorted(members, key=lambda member: (member.kind, _position(member)))))
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
    """Those that can be in one stack: of one kind, with every factor at equal distances in its memory."""
    group: list[Member] = []
    for member in members:
        distances = group[-1].distances(member) if group and group[-1].kind == member.kind else None
        fits = distances is not None and min(distances, default=0) > 0
        fits = fits and math.prod(member.block.shape) * (len(group) + 1) <= LARGEST
        if fits and len(group) > 1:
            fits = group[0].distances(group[1]) == distances
        if group and not fits:
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def windows(members: Sequence[Member]) -> list[Window]:
    """Where they lie in a vector, in as few windows as rows of equal distances make."""
    found = [Window(member.offset, (member.block.shape[0],), (member.width,)) for member in members]
    while len(merged := _rows(found)) < len(found):
        found = merged
    return found


def _rows(found: Sequence[Window]) -> list[Window]:
    """Windows of one form at equal distances as rows of one.

    >>> blocks = [Window(start, (2,), (8,)) for start in (0, 4, 64, 68, 128, 132)]
    >>> _rows(blocks[:3])
    [Window(start=0, counts=(2, 2), steps=(4, 8)), Window(start=64, counts=(2,), steps=(8,))]
    >>> _rows(_rows(blocks))
    [Window(start=0, counts=(3, 2, 2), steps=(64, 4, 8))]
    """
    rows: list[list[Window]] = []
    for window in found:
        row = rows[-1] if rows else []
        fits = bool(row) and (row[0].counts, row[0].steps) == (window.counts, window.steps)
        step = window.start - row[-1].start if fits else 0
        if step > 0 and (len(row) == 1 or row[1].start - row[0].start == step):  # a tensor has no steps backwards
            row.append(window)
        else:
            rows.append([window])
    return [
        Window(row[0].start, (len(row), *row[0].counts), (row[1].start - row[0].start, *row[0].steps))
        if len(row) > 1 else row[0]
        for row in rows
    ]  # fmt: skip


def _places(group: Sequence[Member]) -> list[tuple[int, int]]:
    """Where they lie in a vector, neighbours as one."""
    first, size = group[0], math.prod(group[0].block.shape)
    if not first.is_contiguous:
        return []
    found: list[tuple[int, int]] = []
    for member in group:
        if found and found[-1][1] == member.offset:
            found[-1] = (found[-1][0], member.offset + size)
        else:
            found.append((member.offset, member.offset + size))
    return found


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Matrices at equal distances as one tensor."""
    first, second = tensors[0], tensors[1] if len(tensors) > 1 else None
    if first is None:
        return None
    n, start = first.shape[0], first.storage_offset()
    distance = n * n if second is None else second.storage_offset() - start
    return first.as_strided((len(tensors), n, n), (distance, n, 1), start)
