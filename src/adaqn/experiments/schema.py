"""What a JSON file must hold, as data, and one line about the first value that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from adaqn.experiments.errors import UserError

Schema = Callable[[Any, str], None]
"""Raises :class:`MisfitError` for a value that does not fit; the text names its place."""
LARGEST = 2**53
"""Of whole numbers: a float has them all up to here."""


LEFT = "it was left in place: restore the file, or delete it to make anew what it held"


class MisfitError(ValueError):
    """A value is not what its place needs."""


def check(value: Any, schema: Schema, name: object) -> None:
    """One line about a file or an entry that does not fit."""
    try:
        schema(value, "")
    except MisfitError as error:
        raise UserError(f"{name} is damaged, or of another version: {error}; {LEFT}") from error


def anything(value: Any, place: str) -> None:
    """Whatever it is."""


def text(value: Any, place: str) -> None:
    if not isinstance(value, str):
        raise misfit(value, place, "a text")


def number(low: float = -math.inf, high: float = math.inf, *, whole: bool = False, null: bool = False) -> Schema:
    """A finite number within limits; ``null`` is what losses are that were not finite."""
    kinds = int if whole else (int, float)

    def fits(value: Any, place: str) -> None:
        if null and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise misfit(value, place, f"a {'whole ' if whole else ''}number{' or null' if null else ''}")
        if not -math.inf < value < math.inf or not low <= value <= high:  # compared, never converted: it may be huge
            raise misfit(value, place, f"from {low:g} to {high:g}")

    return fits


positive = number(1e-300)
count = number(0, LARGEST, whole=True)
loss = number(null=True)
"""Of a model that may have diverged."""


def record(needed: Mapping[str, Schema], others: Mapping[str, Schema] | None = None, rest: Schema = anything) -> Schema:
    """Named values: those that are needed, those that are looked at where they are there, and all others."""
    known = {**needed, **(others or {})}

    def fits(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise misfit(value, place, "a set of named values")
        missing = next((name for name in needed if name not in value), None)
        if missing is not None:
            raise MisfitError(f"{place or 'it'} has no entry {missing!r}")
        for name, entry in value.items():
            known.get(name, rest)(entry, f"{place}.{name}" if place else name)

    return fits


def mapping(values: Schema) -> Schema:
    """Named values of one kind."""
    return record({}, rest=values)


def several(values: Schema, least: int = 0) -> Schema:
    """A list of one kind."""

    def fits(value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise misfit(value, place, f"a list of at least {least}" if least else "a list")
        for i, entry in enumerate(value):
            values(entry, f"{place}[{i}]")

    return fits


def misfit(value: Any, place: str, wanted: str) -> MisfitError:
    return MisfitError(f"{place or 'it'} is {shown(value)}, not {wanted}")


def shown(value: Any) -> str:
    """As much of a value as fits into a line.

    >>> shown([1] * 1000)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...'
    """
    try:
        said = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        said = "a number of thousands of digits"
    return said if len(said) <= 45 else f"{said[:40]}..."
