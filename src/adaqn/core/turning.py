"""The bases of a Kronecker scaling follow its averages, some of them at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaqn.core.blocks import Block
from adaqn.core.eigenbasis import carried, first_basis, next_basis
from adaqn.core.schedule import Key, Schedule
from adaqn.core.stacks import Member, Stack, Stacks


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
    """

    def __init__(
        self,
        places: Sequence[Place],
        blocks: Sequence[Sequence[Block]],
        refresh_of: Callable[[tuple[int, int]], int],
    ) -> None:
        keyed = [((i, block.rows[0], block.columns[0]), block) for i, of in enumerate(blocks) for block in of]
        self.schedule = Schedule.of(keyed, refresh_of)
        self._places, self._refresh_of = places, refresh_of
        self._single = {i: (i, of[0].rows[0], of[0].columns[0]) for i, of in enumerate(blocks) if len(of) == 1}
        """Parameters that are one block: only those start anew with their first basis."""
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
        for stack in stacks.stacks:
            ages = [seen[member.parameter] - 1 for member in stack.members]  # SOAP counts from the second gradient
            if max(ages) < 0:
                continue
            known = [self._key(member) in self.schedule.known for member in stack.members]
            self._first(stack, moments, [age == 0 and has for age, has in zip(ages, known, strict=True)])
            refresh = self._refresh_of(stack.members[0].block.shape)
            for side in (0, 1):
                slots = [self.schedule.slots.get((self._key(member), side), -1) for member in stack.members]
                due = [age > 0 and age % refresh == slot for age, slot in zip(ages, slots, strict=True)]
                _next(stack, side, moments, due)
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
                else:  # what is known goes along; blocks of one parameter have one age
                    torch._foreach_copy_(parts, [carried(V, *member.bases) for V in parts])


def _next(stack: Stack, side: int, moments: Sequence[Tensor], due: Sequence[bool]) -> None:
    average, basis = stack.averages[side], stack.bases[side]
    for part in _runs(due):
        if average is None or basis is None:
            continue
        Q, order = next_basis(average[part], basis[part])
        basis[part].copy_(Q)
        places = order.unsqueeze(1 if side else 2)
        for V in moments:
            parts = [member.of(V) for member in stack.members[part]]
            torch._foreach_copy_(parts, torch.stack(parts).take_along_dim(places, 1 + side).unbind())


def _runs(due: Sequence[bool]) -> Iterator[slice]:
    """Stretches of those that are due."""
    start = None
    for i, is_due in enumerate([*due, False]):
        if is_due and start is None:
            start = i
        elif not is_due and start is not None:
            yield slice(start, i)
            start = None
