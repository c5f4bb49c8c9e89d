"""Neighbours in a flat vector that are treated alike."""

from __future__ import annotations

from collections.abc import Sequence


def runs(sizes: Sequence[int], ages: Sequence[int | None]) -> list[tuple[slice, int]]:
    """Stretches of equal age, one slice each; parts whose age is ``None`` are left out.

    >>> runs([2, 3, 1], [7, 7, 4])
    [(slice(0, 5, None), 7), (slice(5, 6, None), 4)]
    >>> runs([2, 3, 1], [7, None, 7])
    [(slice(0, 2, None), 7), (slice(5, 6, None), 7)]
    """
    found: list[tuple[slice, int]] = []
    start = 0
    for size, age in zip(sizes, ages, strict=True):
        if age is not None:
            if found and found[-1] == (slice(found[-1][0].start, start), age):
                found[-1] = (slice(found[-1][0].start, start + size), age)
            else:
                found.append((slice(start, start + size), age))
        start += size
    return found
