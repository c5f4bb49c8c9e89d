"""Loading a saved state: everything is checked before anything is changed.

torch's own ``load_state_dict`` would cast every tensor to its parameter's dtype and device, which
ruins float32 history of bfloat16 parameters and moves F̃ off the CPU. So the per-parameter state is
taken out before torch sees it and copied into our buffers afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from adaqn.optim.counters import FORMAT, SIGNED
from adaqn.optim.flat import FlatParameters
from adaqn.optim.memory import WORK, Layout, Memory
from adaqn.optim.packed import Shapes

Entry = dict[str, Any]
TakeOut = Callable[[Optimizer, dict[str, Any]], dict[str, Any]]
PutBack = Callable[[Optimizer], None]


@contextmanager
def around_torchs_loading(optimizer: Optimizer, take: TakeOut, place: PutBack) -> Iterator[None]:
    """Within the block ``take`` is the last hook before torch's own loading, and ``place`` the first after it."""
    before = optimizer.register_load_state_dict_pre_hook(take)
    after = optimizer.register_load_state_dict_post_hook(place, prepend=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def saved_entries(state_dict: dict[str, Any], count: int) -> dict[int, Entry]:
    """Parameter index → its saved state, by the order of the groups."""
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise ValueError("not the state_dict of an optimizer: it has no 'state' and 'param_groups'")
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    if len(keys) != count:
        raise ValueError(f"the saved state is of {len(keys)} parameters, and this optimizer has {count}")
    return {i: state_dict["state"][key] for i, key in enumerate(keys) if key in state_dict["state"]}


def check(
    entries: list[Entry], flat: FlatParameters, plan: Layout, packed: dict[str, Shapes], numbers: set[str]
) -> None:
    """Do these entries fit buffers of that plan, and tensors of those shapes? One clear error if not."""
    rows = {name: shape for name, (shape, _, _) in plan.items() if name not in WORK}
    for index, entry in enumerate(entries):
        shape = flat.saved_shape(index)
        version = entry.get("format", FORMAT)
        if version != FORMAT:
            raise ValueError(
                f"the saved state has format {version} and this version of adaqn reads 1 to {FORMAT}: "
                "load it with the adaqn that wrote it"
            )
        own = {name: shapes[index] for name, shapes in packed.items()}
        tensors = {name: ours for name, ours in own.items() if ours is not None}
        expected = {*rows, *tensors, *numbers, "gram", "accepted"}
        missing, unknown = expected - set(entry), set(entry) - expected
        if missing or unknown:
            raise ValueError(
                f"the state of parameter {index} was saved by another method or with other options: "
                f"missing {sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}. Build the "
                "optimizer with the options it was saved with, or start without its state"
            )
        shapes = tensors | {name: (*prefix, *shape) for name, prefix in rows.items()} | {"accepted": shape}
        (memory_size,) = rows["pairs_s"]
        shapes["gram"] = (memory_size, memory_size)
        for name, ours in shapes.items():
            is_vector = name in rows or name == "accepted"
            _check_tensor(index, name, entry[name], ours, len(rows.get(name, ())) if is_vector else None)
        for name in sorted(numbers):
            _check_number(index, name, entry[name])
        fisher_size = rows["fisher"][0] if "fisher" in rows else None
        for ring, size in (("pairs", memory_size), ("curvature", fisher_size)):
            if size is not None and f"{ring}_size" in entry:
                _check_range(index, f"{ring}_size", entry[f"{ring}_size"], size)
                _check_range(index, f"{ring}_start", entry[f"{ring}_start"], size - 1)


def _check_tensor(index: int, name: str, saved: Any, ours: tuple[int, ...], rows: int | None) -> None:
    if not isinstance(saved, Tensor):
        raise ValueError(f"the saved {name!r} of parameter {index} is {type(saved).__name__}, not a tensor")
    if not (tuple(saved.shape) == ours or (rows is not None and _same_vectors(tuple(saved.shape), ours, rows))):
        raise ValueError(
            f"the saved {name!r} of parameter {index} has shape {tuple(saved.shape)}, and this optimizer's "
            f"is {ours}: use the model, memory_size and fisher_size that it was saved with"
        )


def _same_vectors(theirs: tuple[int, ...], ours: tuple[int, ...], rows: int) -> bool:
    """Is one the other with the parameter's shape flattened, as ``shard_history`` saves it?"""
    one_is_flat = rows + 1 in (len(theirs), len(ours))
    return one_is_flat and theirs[:rows] == ours[:rows] and math.prod(theirs) == math.prod(ours)


def _check_number(index: int, name: str, saved: Any) -> None:
    try:
        usable = math.isfinite(float(saved)) and (float(saved) >= 0 or name in SIGNED)
    except (TypeError, ValueError):
        usable = False
    if not usable:
        raise ValueError(
            f"the saved {name!r} of parameter {index} is {saved!r}, not "
            f"{'a finite number' if name in SIGNED else 'a number of at least 0'}: corrupt state"
        )


def _check_range(index: int, name: str, saved: Any, largest: int) -> None:
    if not 0 <= saved <= largest:
        raise ValueError(f"the saved {name!r} of parameter {index} is {saved}, outside 0 to {largest}: corrupt state")


def restore(memory: Memory, entries: list[Entry]) -> None:
    """Copy checked entries into the memory."""
    if entries[0]["keeps_accepted"]:
        memory.keep_accepted()
    rows = memory.buffers.keys() - memory.packed.keys()
    for index, (entry, tensors) in enumerate(zip(entries, memory.per_parameter(), strict=True)):
        for name, ours in tensors.items():
            ours.copy_(memory.flat_of(name).held(index, entry[name], ours) if name in rows else entry[name])
    memory.load_numbers(entries)
    if any(entry["pairs_s"].dtype != memory.pairs.S.dtype for entry in entries):
        memory.pairs.recompute()
