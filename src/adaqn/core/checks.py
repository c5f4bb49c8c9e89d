"""Checks of plain numbers, each with one clear message."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

T = TypeVar("T")
LARGEST_STEP = torch.finfo(torch.float32).max
"""torch refuses a longer one with a vector of float32: "value cannot be converted to type float without overflow"."""


LONGEST = 80
"""Characters of a value in an error."""


def shown(value: Any) -> str:
    """A value as one line of an error, whatever it is.

    >>> shown("a"), shown(torch.nn.Parameter(torch.tensor(1.0)))
    ("'a'", 'Parameter containing: tensor(1., requires_grad=True)')
    """
    if isinstance(value, Tensor) and (fault := unreadable(value)):
        return fault  # to print one without data may end the process
    try:
        text = " ".join(repr(value).split())
    except (
        Exception
    ):  # lists in lists without end, or whole numbers of thousands of digits, which Python does not write
        return f"a {type(value).__name__} that cannot be written out"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


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
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    if found < least:
        raise ValueError(f"{name} must be at least {least}, got {found}")
    return found


def number(name: str, value: Any) -> Any:
    """A real number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
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
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
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
    return "on the device 'meta', without data" if tensor.is_meta else without_data(tensor)


def without_data(tensor: Tensor) -> str | None:
    """What keeps an ordinary tensor from having its numbers: to read them then may end the process, without an error.

    >>> freed = torch.ones(2)
    >>> _ = freed.untyped_storage().resize_(0)
    >>> without_data(torch.ones(2)), without_data(freed)
    (None, 'a tensor whose storage was freed: it has 0 of 8 bytes')
    """
    if is_lazy(tensor):
        return "a parameter that was never initialized"
    if tensor.is_nested or tensor.is_meta or tensor.layout != torch.strided:
        return None  # is none, or has no one storage
    own: Tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's is that of its part
    try:
        storage = own.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return "a tensor without a storage"
    if storage.device.type == "meta":
        return "a fake tensor, without data"
    last = sum((n - 1) * stride for n, stride in zip(own.shape, own.stride(), strict=True))
    needed = (own.storage_offset() + last + 1) * own.element_size() if own.numel() else 0
    if storage.nbytes() < needed:
        return f"a tensor whose storage was freed: it has {storage.nbytes()} of {needed} bytes"
    return None


def step_size(name: str, value: Any) -> Any:
    """A number from 0 to the largest of float32, or a tensor that holds one.

    >>> step_size("lr", 0.1)
    0.1
    """
    if isinstance(value, Tensor) and (fault := unreadable(value)):
        raise TypeError(f"Tensor {name} must be an ordinary one, got {fault}")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"Tensor {name} must be 1-element, got one of shape {tuple(value.shape)}")
    if not isinstance(value, Tensor):
        number(name, value)
    elif value.is_complex() or value.dtype == torch.bool or (value.is_floating_point() and value.element_size() == 1):
        # With eight bits torch stores numbers, and does not calculate.
        raise TypeError(f"{name} must be a number, got a tensor of {value.dtype}")
    size = float(value.detach() if isinstance(value, Tensor) else value)
    if not (math.isfinite(size) and size >= 0.0):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    if size > LARGEST_STEP:
        raise ValueError(f"{name} must be at most {LARGEST_STEP:.4g}, the largest number of float32, got {value}")
    return value


def choose(name: str, value: str, choices: dict[str, T]) -> T:
    """What stands behind that name."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {sorted(choices)}, got {shown(value)}")
    return choices[value]
