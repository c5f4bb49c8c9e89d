"""When which basis is made: spread over the steps, so that no step has to make them all.

By which steps depends only on the blocks of the whole parameters, not on where they lie: processes with some of the
blocks each refresh them at the steps at which one process would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from adaqn.core.blocks import Block

K = TypeVar("K")

Key = tuple[int, int, int]
"""A block: its parameter, its first row and its first column."""


@dataclass(frozen=True)
class Schedule:
    """Which blocks have bases, and of each (block, side) at which step out of ``refresh`` it is refreshed.

    First bases all come at once. Spread over the first steps as well, they left some layers without one while others
    moved on: a five-layer RNN never recovered from that (``experiments/LOG.md``).
    """

    slots: dict[tuple[Key, int], int]

    @cached_property
    def known(self) -> set[Key]:
        return {key for key, _ in self.slots}

    @staticmethod
    def of(blocks: Iterable[tuple[Key, Block]], refresh_of: Callable[[tuple[int, int]], int]) -> Schedule:
        """For the blocks of all parameters; ``refresh_of`` their shape says how often."""
        by_refresh: dict[int, list[tuple[Key, tuple[int, int]]]] = {}
        for key, block in blocks:
            if max(block.sides) > 1:
                by_refresh.setdefault(refresh_of(block.sides), []).append((key, block.sides))
        found = Schedule({})
        for refresh, members in by_refresh.items():
            members.sort(key=lambda member: (-max(member[1]), member[1], member[0]))
            units = [((key, side), n) for side in (0, 1) for key, shape in members if (n := shape[side]) > 1]
            units.sort(key=lambda unit: -unit[1])  # neighbours stay neighbours
            found.slots.update(spread([(unit, n**3) for unit, n in units], refresh))
        return found


def spread(costs: Sequence[tuple[K, int]], steps: int) -> dict[K, int]:
    """Which of ``steps`` each one comes in: in their order, and none has more than one above its share.

    >>> spread([("a", 8), ("b", 8), ("c", 8), ("d", 1), ("e", 1)], 4)
    {'a': 0, 'b': 1, 'c': 2, 'd': 3, 'e': 3}
    """
    total, before, found = sum(cost for _, cost in costs), 0, {}
    for key, cost in costs:
        found[key] = before * steps // total
        before += cost
    return found
