"""The saved state of parameters is checked before anything is taken from it, and shown beside what others keep."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from adaqn.core.checks import shown, unreadable
from adaqn.parameters.buffers import Shapes
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.h0_layout import of_other_layout
from adaqn.parameters.loading import Entry
from adaqn.parameters.memory import Memory

LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact as float64 too."""


@dataclass(frozen=True)
class Expected:
    """What the saved state of each parameter must hold."""

    format: int
    oldest: int
    """The first format that is still read, and has been brought to ``format`` by now."""
    rows: Mapping[str, tuple[int, ...]]
    """Vectors: what stands before the parameter's own shape."""
    tensors: Mapping[str, Shapes]
    shared: Mapping[str, tuple[int, ...]]
    numbers: Collection[str]
    signed: Collection[str] = ()
    """Numbers that may be negative."""
    rings: Mapping[str, int] = field(default_factory=dict)
    """Capacity of what is saved with a start and a size."""
    also: Collection[str] = ()
    """Names that may be there, of matrices of H0 that other processes have."""
    kept_as: str = "the model, memory_size, fisher_size and block_size"
    """What must be as it was when the state was saved."""


def show(target: dict[Any, Any], memory: Memory | None, ours: set[str], *, saved: bool) -> None:
    """``optimizer.state`` ← our entries, as they are saved or as views to look at, beside those of others (D27)."""
    if memory is None:
        return
    for key, entry in list(target.items()):
        if isinstance(key, Tensor) and isinstance(entry, dict):
            target[key] = {name: value for name, value in entry.items() if name not in ours}
            if not target[key]:
                del target[key]
    entries = memory.saved() if saved else memory.shown()
    for p, entry in zip(memory.flat.params, entries, strict=True):
        beside = target.get(p)
        target[p] = {**entry, **beside} if isinstance(beside, dict) else entry


def foreign(saved: dict[str, Any], ours: set[str]) -> dict[Any, Any]:
    """What others have put there: whole entries by keys of their own, and beside ours in those of parameters."""
    parameters = {key for group in saved["param_groups"] for key in group["params"]}
    found = {}
    for key, entry in saved["state"].items():
        theirs = {name: v for name, v in entry.items() if name not in ours} if key in parameters else entry
        if theirs or key not in parameters:
            found[key] = theirs
    return found


def check_entries(entries: Sequence[Entry], flat: FlatParameters, expected: Expected) -> None:
    """Do these entries fit a state of those parameters? One clear error if not."""
    for index, entry in enumerate(entries):
        shape = flat.saved_shape(index)
        version = check_number(index, "format", entry.get("format", expected.format))
        if version != expected.format:
            first = "" if expected.oldest == expected.format else f"{expected.oldest} to "
            raise ValueError(
                f"the saved state has format {version} and this version of adaqn reads {first}{expected.format}: "
                "load it with the adaqn that wrote it"
            )
        tensors = {name: own for name, shapes in expected.tensors.items() if (own := shapes[index]) is not None}
        names = {*expected.rows, *tensors, *expected.shared, *expected.numbers}
        missing = names - set(entry)
        unknown = {name for name in set(entry) - names if not of_other_layout(name) and name not in expected.also}
        if any(map(of_other_layout, entry)):  # of other shards: what is known of H0 begins again with that
            missing -= set(tensors)
            tensors = {name: own for name, own in tensors.items() if name in entry}
        if missing or unknown:
            raise ValueError(
                f"the state of parameter {index} was saved by another method or with other options: "
                f"missing {sorted(missing) or 'nothing'}, unknown {sorted(map(str, unknown)) or 'nothing'}. Build the "
                "optimizer with the options it was saved with, or start without its state"
            )
        for name, rows in expected.rows.items():
            check_tensor(index, name, entry[name], (*rows, *shape), len(rows), kept_as=expected.kept_as)
        for name, ours in {**tensors, **expected.shared}.items():
            check_tensor(index, name, entry[name], ours, 0 if name in tensors else None, kept_as=expected.kept_as)
        for name in sorted(set(entry) - names):  # matrices of H0 in another layout, taken where they fit
            check_tensor(index, name, entry[name], tuple(getattr(entry[name], "shape", ())), kept_as=expected.kept_as)
        for name in sorted(expected.numbers):
            check_number(index, name, entry[name], signed=name in expected.signed)
        for ring, size in expected.rings.items():
            if f"{ring}_size" in entry:
                check_range(index, f"{ring}_size", entry[f"{ring}_size"], size)
                check_range(index, f"{ring}_start", entry[f"{ring}_start"], max(0, size - 1))
    check_same(entries, expected.shared)


def with_plain_numbers(entries: Sequence[Entry], expected: Expected) -> list[Entry]:
    """Numbers that came as tensors, or as numpy's, as Python's own."""
    return [{n: plain(v) if n in expected.numbers else v for n, v in entry.items()} for entry in entries]


def plain(saved: Any) -> int | float | None:
    """A number that may have come as a tensor, or as numpy's; ``None`` for what is none.

    >>> plain(torch.tensor(3)), plain(2.5), plain("3")
    (3, 2.5, None)
    """
    if isinstance(saved, Tensor):
        saved = None if unreadable(saved) or saved.numel() != 1 or saved.is_complex() else saved.detach().item()
    elif getattr(saved, "shape", None) == () and hasattr(saved, "item"):
        saved = saved.item()
    return saved if isinstance(saved, int | float) else None


def check_restored(entries: Sequence[Entry], memory: Memory) -> None:
    """Did every number come out as it was saved? A count that is not whole, or not the same for all, does not.

    H0 may begin again where the parts of a vector are others than before, and so may one whose matrices
    torch.distributed.checkpoint did not find.
    """
    begins_again = not memory.flat.is_whole or memory.flat.processes.count > 1
    begins_again |= any(of_other_layout(name) for entry in entries for name in entry)
    for index, entry in enumerate(entries):
        for name, value in memory.numbers(index).items():
            restarted = name == "scaling_seen" and value == 0
            if entry[name] != value and not restarted and not (begins_again and name.startswith("scaling_")):
                raise ValueError(
                    f"the saved {name!r} of parameter {index} is {entry[name]}, and would be {value}: it is not whole, "
                    "or not what the others say; corrupt state"
                )


def check_tensor(
    index: int, name: str, saved: Any, ours: tuple[int, ...], rows: int | None = None, *, kept_as: str,
    dtype: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    """A tensor that holds numbers of that kind, in that shape; ``rows`` stand before a shape that may be flattened."""
    if not isinstance(saved, Tensor):
        raise ValueError(f"the saved {name!r} of parameter {index} is {type(saved).__name__}, not a tensor")
    if fault := unreadable(saved):
        raise ValueError(f"the saved {name!r} of parameter {index} is {fault}: save it as an ordinary tensor")
    if not (saved.is_floating_point() if dtype.is_floating_point else saved.dtype == dtype):
        kind = "a floating-point one" if dtype.is_floating_point else f"one of {dtype}"
        raise ValueError(f"the saved {name!r} of parameter {index} is a tensor of {saved.dtype}, not {kind}")
    if not (tuple(saved.shape) == ours or (rows is not None and _same_vectors(tuple(saved.shape), ours, rows))):
        raise ValueError(
            f"the saved {name!r} of parameter {index} has shape {tuple(saved.shape)}, and this optimizer's "
            f"is {ours}: use {kept_as} that it was saved with"
        )


def _same_vectors(theirs: tuple[int, ...], ours: tuple[int, ...], rows: int) -> bool:
    """Is one the other with the parameter's shape flattened, as ``shard_history`` saves it?"""
    one_is_flat = rows + 1 in (len(theirs), len(ours))
    return one_is_flat and theirs[:rows] == ours[:rows] and math.prod(theirs) == math.prod(ours)


def check_number(index: int, name: str, saved: Any, *, signed: bool = False) -> int | float:
    """A finite number, whole ones within what float64 holds exactly; of at least 0 if it has no sign."""
    value = plain(saved)
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        said, value = f"beyond ±{LARGEST_WHOLE}", None  # Python refuses to write out thousands of digits
    else:
        said = shown(saved)
    if value is None or not math.isfinite(value) or (value < 0.0 and not signed):
        raise ValueError(
            f"the saved {name!r} of parameter {index} is {said}, not "
            f"{'a finite number' if signed else 'a number of at least 0'}: corrupt state"
        )
    return value


def check_range(index: int, name: str, saved: Any, largest: int, smallest: int = 0) -> int:
    """A whole number within limits."""
    value = plain(saved)
    if value is None or not (smallest <= value <= largest and value == int(value)):
        raise ValueError(
            f"the saved {name!r} of parameter {index} is {shown(saved)}, outside {smallest} to {largest}: corrupt state"
        )
    return int(value)


def check_same(entries: Sequence[Entry], names: Iterable[str]) -> None:
    """What all parameters share must be the same in the saved state of each."""
    for name in sorted(names):
        for index, entry in enumerate(entries):
            if not _same(entry[name], entries[0][name]):
                raise ValueError(
                    f"the saved {name!r} of parameter {index} is not that of parameter 0, and all share it: corrupt "
                    "state"
                )


def _same(a: Any, b: Any) -> bool:
    if a is b or not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return a is b or bool(a == b)
    b = b.to(a.device, a.dtype)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
