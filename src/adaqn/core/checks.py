"""Checks of plain numbers, each with one clear message."""

from __future__ import annotations

import operator


def at_least_one(name: str, value: int) -> int:
    return whole(name, value, 1)


def whole(name: str, value: int, least: int) -> int:
    """A whole number that is not too small.

    >>> whole("memory_size", 3, 1)
    3
    """
    try:
        is_whole = not isinstance(value, bool) and operator.index(value) == value
    except TypeError:
        is_whole = False
    if not is_whole:
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value
