"""Saving and loading: everything is checked before anything is changed.

torch's own ``load_state_dict`` would cast every tensor to its parameter's dtype and device, which
ruins float32 history of bfloat16 parameters and moves F̃ off the CPU. So our entries of the per-parameter state are
taken out before torch sees them and copied into our buffers afterwards. What others have put into ``optimizer.state``
is left to torch (D27).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from adaqn.core.acceptance import GROUPS, SMALLEST_MULTIPLIER
from adaqn.core.checks import unreadable
from adaqn.core.curvature import Curvature
from adaqn.core.scaling import Scaling
from adaqn.optim.descent import Group, any_momentum
from adaqn.optim.events import FORMAT, Counters
from adaqn.optim.layout import number_names, vector_layout
from adaqn.optim.making import flat_for, new_state
from adaqn.optim.method import Method
from adaqn.optim.state import State
from adaqn.optim.torch_arguments import is_torchs
from adaqn.optim.warm_start import refuse_torchs
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.h0_layout import layout_for, of_other_layout
from adaqn.parameters.loading import Entry, entries_by_parameter
from adaqn.parameters.saved import (
    LARGEST_WHOLE,
    Expected,
    check_entries,
    check_number,
    check_range,
    check_restored,
    foreign,
    with_plain_numbers,
)
from adaqn.parameters.saved import show as show_beside_others

_OWN = {
    *(field.name for field in fields(Counters)),
    *("format", "gram", "best_losses", "anchor", "window", "window_count", "window_steps", "accepted", "iterate"),
    "keeps_accepted",
    *("fisher", "master", "pairs_s", "pairs_y", "pairs_start", "pairs_size", "momentum", "momentum_step"),
}
_OF_PARTS = {
    *(f"scaling_{name}" for name in ("sum", "square_avg", "step", "seen", "factor", "bounded_factor")),
    *(f"scaling_{side}_{what}" for side in ("left", "right") for what in ("average", "basis")),
    *(f"scaling_ratio_{i}" for i in range(100)),
    *("curvature_start", "curvature_size", "curvature_batch"),
}
"""Of parts of the library: in the state of a method without such a part they are no stranger's."""
NEW_IN_2 = ("rejected_at", "cycle_length", "monitor_position")
NEW_IN_6 = ("averaged_steps", "evaluating")
NEW_IN_7 = ("by_first_look",)
GONE_IN_8 = ("has_best", "best_loss", "best_error")
COUNTS = ("window_count", "window_steps", *(field.name for field in fields(Counters) if field.type == "int"))


def own_names(scaling: Scaling, curvature: Curvature, shapes: Iterable[Sequence[int]]) -> set[str]:
    """By which names our part of the state of a parameter is saved."""
    of_scaling = {*scaling.vector_names, *scaling.number_names}
    of_scaling |= {name for shape in shapes for name in scaling.tensor_shapes(tuple(shape))}
    return _OWN | {f"scaling_{name}" for name in of_scaling} | {f"curvature_{n}" for n in curvature.number_names}


def show(target: dict[Any, Any], state: State | None, *, saved: bool) -> None:
    """``optimizer.state`` ← our entries, as they are saved or as views to look at, beside those of others."""
    if state is not None:
        ours = own_names(state.scaling, state.curvature, state.layout.shapes) | state.layout.names
        show_beside_others(target, state, ours, saved=saved)


def taken(saved: dict[str, Any], method: Method, groups: list[Group]) -> tuple[State | None, dict[str, Any]]:
    """(A state made from our entries, checked; the saved dictionary without them, for torch to load)."""
    params = [p for group in groups for p in group["params"]]
    ours = (
        own_names(method.scaling, method.curvature, [(*p.shape, 2) if p.is_complex() else p.shape for p in params])
        | _OF_PARTS
    )
    ours |= {name for entry in entries_by_parameter(saved).values() for name in entry if of_other_layout(name)}
    entries = saved_entries(saved, ours)
    saved_groups: list[Group] = saved["param_groups"]
    refuse_torchs(entries.values(), saved_groups, method.scaling)
    state = None
    if entries:
        # Groups saved before momentum was a value of theirs leave it to the optimizer.
        known = any("momentum" in group for group in saved_groups)
        momentum = any("momentum" in entry for entry in entries.values()) if known else any_momentum(groups)
        state = restored([params[i] for i in entries], list(entries.values()), method, momentum=momentum)
    return state, {**saved, "param_groups": with_momentum(saved_groups, groups), "state": foreign(saved, ours)}


def with_momentum(saved: Sequence[Group], ours: Sequence[Group]) -> list[Group]:
    """The saved groups; where they are from before momentum was a value of theirs, with ours."""
    known = [{"momentum": group["momentum"]} if "momentum" in group else {} for group in ours]
    return [{**before, **group} for before, group in zip(known, saved, strict=True)]


def saved_entries(state_dict: dict[str, Any], own: set[str]) -> dict[int, Entry]:
    """Parameter index → our part of its saved state in today's format, by the order of the groups."""
    saved = entries_by_parameter(state_dict)
    ours = {i: {name: v for name, v in entry.items() if name in own} or _of_torch(entry) for i, entry in saved.items()}
    found = {i: check_number(i, "format", entry.get("format", FORMAT)) for i, entry in ours.items()}
    if len(formats := {float(found[i]) for i, entry in ours.items() if entry}) > 1:
        raise ValueError(f"the saved states of the parameters have several formats, {sorted(formats)}: corrupt state")
    return {
        i: migrated({**entry, "format": found[i]} if "format" in entry else entry) for i, entry in ours.items() if entry
    }


def _of_torch(entry: Entry) -> Entry:
    """All of it where another optimizer wrote it, for the check to refuse; nothing where it is a stranger's note."""
    return entry if is_torchs(entry) else {}


def migrated(entry: Entry) -> Entry:
    """The saved state of a parameter in today's format; what it cannot be brought to is left for the check to name.

    Format 1 knew no adaptive cycles, no rotating monitor's turn and no window of rejections: zero stands for each.
    Formats 1 and 2 had an accepted average only where it was kept. Formats 1 to 3 did not remember the best loss.
    Formats 1 to 4 counted only finite steps towards the length of a cycle. Formats 1 to 5 had no growing average.
    Formats 1 to 6 did not count first looks. Formats 4 to 7 knew of the best loss only its mean and error: it is
    forgotten.
    Format 1 had no smallest multiplier (D24).
    """
    if entry.get("format") not in range(1, FORMAT):
        return entry
    kept = {"keeps_accepted": int("accepted" in entry)}
    known = {"accepted": entry["anchor"], "iterate": entry["anchor"]} if "anchor" in entry else {}
    known |= {"window_steps": entry["window_count"]} if "window_count" in entry else {}
    multiplier = entry.get("step_multiplier", 1.0)
    if isinstance(multiplier, float):
        entry = {**entry, "step_multiplier": max(multiplier, SMALLEST_MULTIPLIER)}
    return {
        **dict.fromkeys((*NEW_IN_2, *NEW_IN_6, *NEW_IN_7), 0),
        "best_losses": torch.full((GROUPS,), math.inf, dtype=torch.float64),
        **kept,
        **known,
        **{name: value for name, value in entry.items() if name not in GONE_IN_8},
        "format": FORMAT,
    }


def expected_of(method: Method, flat: FlatParameters, *, momentum: bool) -> Expected:
    """What a saved state of that method for those parameters holds."""
    rows = {name: shape for name, (shape, _, _) in vector_layout(method, momentum=momentum).items()}
    (memory_size,) = rows["pairs_s"]
    rings = {"pairs": memory_size} | ({"curvature": rows["fisher"][0]} if "fisher" in rows else {})
    layout = layout_for(flat.for_scaling(method.scaling), method.scaling)
    return Expected(
        FORMAT,
        1,
        {**rows, "accepted": (), "iterate": ()},
        layout.expected,
        {"gram": (memory_size, memory_size), "best_losses": (GROUPS,)},
        number_names(method, momentum=momentum),
        rings=rings,
        also=layout.names,
    )


def check_pairs(entries: list[Entry], method: Method) -> None:
    """Up to 0.2 the default kept pairs, and its states are still about."""
    sizes = _rows(entries, "pairs_s")
    if method.memory_size == 0 and sizes - {0}:
        gradients = _rows(entries, "fisher")
        fisher = f", fisher_size={max(gradients)}" if gradients else ""
        raise ValueError(
            f"the state was saved with room for {max(sizes)} pairs, and this optimizer keeps none: pass "
            f"pairs=PairOptions(memory_size={max(sizes)}{fisher}), the default up to 0.2, or start without the state"
        )


def _rows(entries: list[Entry], name: str) -> set[int]:
    """How many there are, by parameter; what cannot be looked at is left for the check to name."""
    saved = [entry[name] for entry in entries if isinstance(entry.get(name), Tensor)]
    return {len(tensor) for tensor in saved if not unreadable(tensor) and tensor.dim()}


def restored(params: list[Tensor], entries: list[Entry], method: Method, *, momentum: bool) -> State:
    """A new state for these parameters with what was saved of each; one clear error if that does not fit."""
    flat = flat_for(method, params)
    expected = expected_of(method, flat, momentum=momentum)
    check_pairs(entries, method)
    check_entries(entries, flat, expected)
    for index, entry in enumerate(entries):
        for name in COUNTS:
            check_range(index, name, entry[name], LARGEST_WHOLE)
    entries = with_plain_numbers(entries, expected)
    state = new_state(method, flat, momentum=momentum)
    if entries[0]["keeps_accepted"]:
        state.keep_accepted()
    if entries[0]["evaluating"]:
        state.keep_iterate()
    state.load(entries)
    if state.accepted is not None and entries[0]["keeps_accepted"] == 0:  # saved where no average was kept
        entries = [{**entry, "keeps_accepted": 1} if entry["keeps_accepted"] == 0 else entry for entry in entries]
    check_restored(entries, state)
    if state.counters.started and not bool(state.anchor.isfinite().all()):
        # Nothing that is not finite is accepted (D13). Weights before the first cycle may be anything.
        raise ValueError("the saved 'anchor' is not finite, and no cycle accepts such weights: corrupt state")
    return state
