"""Neighbours in a flat vector that are treated alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def runs(sizes: Sequence[int], kinds: Sequence[T | None]) -> list[tuple[slice, T]]:
    """Stretches of the same kind (an age, say), one slice each; parts whose kind is ``None`` are left out.

    >>> runs([2, 3, 1], [7, 7, 4])
    [(slice(0, 5, None), 7), (slice(5, 6, None), 4)]
    >>> runs([2, 3, 1], [7, None, 7])
    [(slice(0, 2, None), 7), (slice(5, 6, None), 7)]
    """
    found: list[tuple[slice, T]] = []
    start = 0
    for size, kind in zip(sizes, kinds, strict=True):
        if kind is not None:
            if found and found[-1] == (slice(found[-1][0].start, start), kind):
                found[-1] = (slice(found[-1][0].start, start + size), kind)
            else:
                found.append((slice(start, start + size), kind))
        start += size
    return found
