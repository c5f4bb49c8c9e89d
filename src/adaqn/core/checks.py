"""Checks of plain numbers, each with one clear message."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def at_least_one(name: str, value: int) -> int:
    return whole(name, value, 1)


def whole(name: str, value: int, least: int) -> int:
    """A whole number that is not too small, as Python's own where it is numpy's.

    >>> whole("memory_size", 3, 1)
    3
    """
    if isinstance(value, Tensor):  # it has an index, and shapes that are made of it are none
        raise TypeError(f"{name} must be a whole number, not a tensor, got {value!r}: give its .item()")
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if found < least:
        raise ValueError(f"{name} must be at least {least}, got {found}")
    return found


def number(name: str, value: Any) -> Any:
    """A real number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if isinstance(value, int) and abs(value) >= 2**63:  # perhaps of hundreds of digits, which nobody wants to read
        raise ValueError(f"{name} must be a number that a tensor can hold, got a whole number of 2^63 or more")
    return value


def at_least_zero(name: str, value: Any) -> float:
    number(name, value)
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return float(value)


def not_nan(name: str, value: Any) -> float:
    """A number by which something is compared: infinite is always or never."""
    if math.isnan(number(name, value)):
        raise ValueError(f"{name} must be a number, got {value}")
    return float(value)


def positive_number(name: str, value: Any) -> float:
    number(name, value)
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be a positive number, got {value}")
    return float(value)


def between(name: str, value: Any, low: float, high: float, *, or_equal: bool = False) -> float:
    """A number between two others, or with ``or_equal`` the upper one itself.

    >>> between("c2", 0.9, 1e-4, 1.0)
    0.9
    """
    number(name, value)
    if not (low < value < high or (or_equal and value == high)):
        limit = f"above {low} and at most {high}" if or_equal else f"between {low} and {high}"
        raise ValueError(f"{name} must be {limit}, got {value}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def unreadable(tensor: Tensor) -> str | None:
    """What keeps the numbers of a tensor from being read or copied; ``None`` if nothing does.

    >>> unreadable(torch.ones(2)), unreadable(torch.ones(2, device="meta"))
    (None, "on the device 'meta', without data")
    """
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({tensor.layout})"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})"
    return "on the device 'meta', without data" if tensor.is_meta else None


def step_size(name: str, value: Any) -> Any:
    """A finite number of at least 0, or a tensor that holds one.

    >>> step_size("lr", 0.1)
    0.1
    """
    if isinstance(value, Tensor) and (fault := unreadable(value)):
        raise TypeError(f"Tensor {name} must be an ordinary one, got {fault}")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"Tensor {name} must be 1-element, got one of shape {tuple(value.shape)}")
    if not isinstance(value, Tensor):
        number(name, value)
    elif value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must be a number, got a tensor of {value.dtype}")
    if not (math.isfinite(float(value)) and float(value) >= 0.0):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return value


def choose(name: str, value: str, choices: dict[str, T]) -> T:
    """What stands behind that name."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {sorted(choices)}, got {value!r}")
    return choices[value]
