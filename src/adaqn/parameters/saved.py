"""The saved state of parameters is checked before anything is taken from it, and shown beside what others keep."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from adaqn.parameters.buffers import Shapes
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.h0_layout import of_other_layout
from adaqn.parameters.loading import Entry
from adaqn.parameters.memory import Memory


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
    kept_as: str = "the model, memory_size and fisher_size"
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
        version = entry.get("format", expected.format)
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
            _check_tensor(index, name, entry[name], (*rows, *shape), len(rows), expected.kept_as)
        for name, ours in {**tensors, **expected.shared}.items():
            _check_tensor(index, name, entry[name], ours, 0 if name in tensors else None, expected.kept_as)
        for name in sorted(expected.numbers):
            _check_number(index, name, entry[name], signed=name in expected.signed)
        for ring, size in expected.rings.items():
            if f"{ring}_size" in entry:
                _check_range(index, f"{ring}_size", entry[f"{ring}_size"], size)
                _check_range(index, f"{ring}_start", entry[f"{ring}_start"], max(0, size - 1))


def _check_tensor(index: int, name: str, saved: Any, ours: tuple[int, ...], rows: int | None, kept_as: str) -> None:
    if not isinstance(saved, Tensor):
        raise ValueError(f"the saved {name!r} of parameter {index} is {type(saved).__name__}, not a tensor")
    if not (tuple(saved.shape) == ours or (rows is not None and _same_vectors(tuple(saved.shape), ours, rows))):
        raise ValueError(
            f"the saved {name!r} of parameter {index} has shape {tuple(saved.shape)}, and this optimizer's "
            f"is {ours}: use {kept_as} that it was saved with"
        )


def _same_vectors(theirs: tuple[int, ...], ours: tuple[int, ...], rows: int) -> bool:
    """Is one the other with the parameter's shape flattened, as ``shard_history`` saves it?"""
    one_is_flat = rows + 1 in (len(theirs), len(ours))
    return one_is_flat and theirs[:rows] == ours[:rows] and math.prod(theirs) == math.prod(ours)


def _check_number(index: int, name: str, saved: Any, *, signed: bool) -> None:
    try:
        usable = math.isfinite(float(saved)) and (float(saved) >= 0 or signed)
    except (TypeError, ValueError):
        usable = False
    if not usable:
        raise ValueError(
            f"the saved {name!r} of parameter {index} is {saved!r}, not "
            f"{'a finite number' if signed else 'a number of at least 0'}: corrupt state"
        )


def _check_range(index: int, name: str, saved: Any, largest: int) -> None:
    if not 0 <= saved <= largest:
        raise ValueError(f"the saved {name!r} of parameter {index} is {saved}, outside 0 to {largest}: corrupt state")
