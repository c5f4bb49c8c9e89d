"""The bases of a Kronecker scaling follow its averages, some of them at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaqn.core.blocks import Block
from adaqn.core.eigenbasis import carried, first_basis, next_basis, sorted_along
from adaqn.core.schedule import Key, Schedule
from adaqn.core.stacks import Member, Stack, Stacks

SHORT = 128
"""Sides of up to this length are refreshed together with all others of the same length."""


@dataclass(frozen=True)
class Place:
    """Where a matrix lies in a whole parameter."""

    parameter: int
    row: int = 0
    column: int = 0


class Turning:
    """Makes and refreshes bases when they are due, and brings averages into their coordinates.

    Args:
        places: of the parameters in whole ones.
        blocks: of each whole one, wherever they lie; none where there are no bases.
        refresh_of: the shape of a block → gradients between two refreshments.
        starts_anew: are averages of a parameter that is one block forgotten at its first basis? If not, they go along.
    """

    def __init__(
        self,
        places: Sequence[Place],
        blocks: Sequence[Sequence[Block]],
        refresh_of: Callable[[tuple[int, int]], int],
        *,
        starts_anew: bool,
    ) -> None:
        keyed = [((i, block.rows[0], block.columns[0]), block) for i, of in enumerate(blocks) for block in of]
        self.schedule = Schedule.of(keyed, refresh_of)
        self._places, self._refresh_of = places, refresh_of
        alone = [(i, of[0]) for i, of in enumerate(blocks) if starts_anew and len(of) == 1]
        self._single = {i: (i, block.rows[0], block.columns[0]) for i, block in alone}
        """Parameters whose averages start anew with their first basis; blocks of one parameter have one age."""
        self._kept: set[int] = set()

    def reset(self) -> None:
        self._kept = set()

    def keep(self, parameter: int, *, keep: bool) -> None:
        """Does V go with the first basis of that parameter, instead of starting anew?"""
        (self._kept.add if keep else self._kept.discard)(parameter)

    def turn(self, stacks: Stacks, moments: Sequence[Tensor], seen: Sequence[int], present: Sequence[int]) -> list[int]:
        """Bases that are due for parameters that have seen so many gradients; averages in their coordinates follow.

        Returns the parameters whose averages start anew, also those that lie in other processes: all count alike.
        """
        restarted = [i for i in present if self._starts_anew(i, seen[i])]
        due_sides: list[Sides] = []
        for stack in stacks.stacks:
            ages = [seen[member.parameter] - 1 for member in stack.members]  # SOAP counts from the second gradient
            if max(ages) < 0:
                continue
            known = [self._key(member) in self.schedule.known for member in stack.members]
            self._first(stack, moments, [age == 0 and has for age, has in zip(ages, known, strict=True)])
            refresh = self._refresh_of(stack.members[0].block.sides)
            for side in (0, 1):
                slots = [self.schedule.slots.get((self._key(member), side), -1) for member in stack.members]
                due = [age > 0 and age % refresh == slot for age, slot in zip(ages, slots, strict=True)]
                due_sides += [Sides(stack, side, part) for part in _runs(due)]
        for together in _batches(due_sides):
            _next(together, moments)
        return restarted

    def _key(self, member: Member) -> Key:
        place, block = self._places[member.parameter], member.block
        return place.parameter, place.row + block.rows[0], place.column + block.columns[0]

    def _starts_anew(self, parameter: int, seen: int) -> bool:
        key = self._single.get(self._places[parameter].parameter)
        return key is not None and parameter not in self._kept and seen == 1 and key in self.schedule.known

    def _first(self, stack: Stack, moments: Sequence[Tensor], due: Sequence[bool]) -> None:
        for part in _runs(due):
            for average, basis in zip(stack.averages, stack.bases, strict=True):
                if average is not None and basis is not None:
                    basis[part].copy_(first_basis(average[part]))
            for k in range(part.start, part.stop):
                member = stack.members[k]
                parts = [member.of(V) for V in moments]
                alone = self._places[member.parameter].parameter in self._single
                if alone and member.parameter not in self._kept:  # they were of the identity's coordinates
                    torch._foreach_zero_(parts)
                else:
                    torch._foreach_copy_(parts, [carried(V, *member.bases) for V in parts])


@dataclass(frozen=True)
class Sides:
    """One side of some neighbours in a stack."""

    stack: Stack
    side: int
    part: slice

    @property
    def length(self) -> int:
        return self.stack.shape[1 + self.side]

    @property
    def average(self) -> Tensor:
        average = self.stack.averages[self.side]
        assert average is not None  # it has a slot
        return average[self.part]

    @property
    def basis(self) -> Tensor:
        basis = self.stack.bases[self.side]
        assert basis is not None
        return basis[self.part]

    def sort(self, moments: Sequence[Tensor], order: Tensor) -> None:
        """Bring averages of squares into the order of the new basis."""
        for V in moments:
            parts = [member.of(V) for member in self.stack.members[self.part]]
            torch._foreach_copy_(parts, sorted_along(torch.stack(parts), order, self.side - 2).unbind())


def _batches(sides: Sequence[Sides]) -> Iterator[list[Sides]]:
    """Short ones of one length together: there the number of operations counts, and copies are cheap."""
    by_length: dict[int, list[Sides]] = {}
    for one in sides:
        if one.length <= SHORT:
            by_length.setdefault(one.length, []).append(one)
        else:
            yield [one]
    yield from by_length.values()


def _next(sides: Sequence[Sides], moments: Sequence[Tensor]) -> None:
    """The next bases of sides of one length."""
    averages, bases = [one.average for one in sides], [one.basis for one in sides]
    if len(sides) == 1:
        Q, order = next_basis(averages[0], bases[0])
    else:
        Q, order = next_basis(torch.cat(averages), torch.cat(bases))
    counts = [len(basis) for basis in bases]
    for one, basis, new, places in zip(sides, bases, torch.split(Q, counts), torch.split(order, counts), strict=True):
        basis.copy_(new)
        one.sort(moments, places)


def _runs(due: Sequence[bool]) -> Iterator[slice]:
    """Stretches of those that are due."""
    start = None
    for i, is_due in enumerate([*due, False]):
        if is_due and start is None:
            start = i
        elif not is_due and start is not None:
            yield slice(start, i)
            start = None
