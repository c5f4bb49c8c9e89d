"""Values against the types that a dataclass declares: what is read from a file may be anything."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def checked(instance: T) -> T:
    """The same; a ``TypeError`` that names the first value of another type, also in dataclasses inside."""
    hints = get_type_hints(type(instance))
    for field in fields(instance):  # type: ignore[arg-type]
        value = getattr(instance, field.name)
        if not fits(value, hints[field.name]):
            raise TypeError(f"{field.name} is {str(value)[:40]!r}")
    return instance


def fits(value: Any, hint: Any) -> bool:
    """Is it of that type? A whole number is a float too, and a truth value is no number.

    >>> fits(1, float), fits(True, int), fits((1, 2), tuple[int, ...]), fits(None, float | None)
    (True, False, True, True)
    """
    inside = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, one) for one in inside)
    if get_origin(hint) is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = inside[:1] * len(value) if inside[1:] == (...,) else inside
        return len(value) == len(wanted) and all(map(fits, value, wanted))
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint) and (not is_dataclass(value) or checked(value) is value)
