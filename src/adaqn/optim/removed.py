"""Names of 0.1 that are gone, and what to write instead.

The laboratory still calls options by these flat names: its configurations and results outlive the signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch

from adaqn.core.checks import choose
from adaqn.core.curvature import AccumulatedFisher
from adaqn.core.scaling import Scaling
from adaqn.core.scaling_names import SCALINGS
from adaqn.optim.settings import (
    PAIRS_IF_ASKED,
    PRESETS,
    PairOptions,
    Preset,
    RejectOptions,
    StorageOptions,
    given,
)
from adaqn.optim.torch_arguments import NOT_NEEDED, OF_FAMILY, advice

PLACES: dict[str, tuple[str, str]] = {
    "memory_size": ("pairs", "memory_size"),
    "fisher_size": ("pairs", "fisher_size"),
    "curvature": ("pairs", "curvature"),
    "curvature_test": ("pairs", "test"),
    "curvature_eps": ("pairs", "eps"),
    "pair_scale": ("pairs", "scale"),
    "damping": ("pairs", "damping"),
    "anchor_patience": ("pairs", "anchor_patience"),
    "direction": ("pairs", "direction"),
    "acceptance": ("reject", "test"),
    "reject_factor": ("reject", "factor"),
    "paired_level": ("reject", "level"),
    "first_look": ("reject", "first_look"),
    "reject_window": ("reject", "window"),
    "reject_patience": ("reject", "patience"),
    "momentum_on_reject": ("reject", "reset_momentum"),
    "reset_scaling_on_reject": ("reject", "reset_scaling"),
    "history_dtype": ("storage", "history_dtype"),
    "fisher_dtype": ("storage", "fisher_dtype"),
    "fisher_device": ("storage", "fisher_device"),
    "master_weights": ("storage", "master_weights"),
    "shard_history": ("storage", "shard_history"),
}
"""Flat name → (argument, field)."""
_KINDS = {"pairs": PairOptions, "reject": RejectOptions, "storage": StorageOptions}
_NEVER = ("anchor_patience", "reject_patience")
"""``None`` was never, which now is 0."""
FLAT = (*PLACES, "scaling_eps", "fisher_batch_size", "min_cycle_length", "max_cycle_length")
"""All of them."""
_ATTRIBUTES = {
    "options": "opt.scaling is H0, opt.monitor the monitor, opt.stats the totals; the rest is not public",
    "recent": "opt.last_cycle is the last event; on_cycle=events.append keeps them all",
    "finish_cycle": "it is not public: cycles end by themselves",
}


def check_removed(
    method: str,
    given: Mapping[str, Any],
    *,
    preset: str = "default",
    scaling: str | Scaling | None = None,
    arguments: Container[str] = tuple(_KINDS),
) -> None:
    """An error for arguments that are not there: what to write instead, for those that once were and for torch's.

    ``arguments`` are those of the dataclasses that the method takes.
    """
    if not given:
        return
    known = [name for name in given if name in FLAT and _place(name) in arguments]
    instead = [f"write {_instead({name: given[name] for name in known}, preset)}"] if known else []
    if "pairs" in arguments:
        instead += advice(given, _kind_of(scaling, preset), NOT_NEEDED)
    else:
        instead += advice(given, None, OF_FAMILY)
    message = f"{method} has no argument {', '.join(map(repr, given))}"
    raise TypeError(": ".join([message, "; ".join(instead)] if instead else [message]))


def _kind_of(scaling: str | Scaling | None, preset: str) -> type[Scaling]:
    chosen = _preset(preset).scaling if scaling is None else scaling
    return type(chosen) if isinstance(chosen, Scaling) else SCALINGS.get(str(chosen), Scaling)


def _preset(name: Any) -> Preset:
    """One that does not exist is told elsewhere."""
    return PRESETS.get(str(name), PRESETS["default"])


def _place(name: str) -> str:
    return PLACES[name][0] if name in PLACES else "pairs"  # the others are AdaQN's alone, as pairs are


def _instead(given: Mapping[str, Any], preset: str) -> str:
    """The same in today's words, all at once."""
    usual = _preset(preset)
    fields_of: dict[str, list[str]] = {}
    for name, value in given.items():
        if name in PLACES:
            place, field = PLACES[name]
            fields_of.setdefault(place, []).append(f"{field}={_written(_value(name, value))}")
    if "fisher_batch_size" in given:
        size = given.get("fisher_size") or usual.pairs.fisher_size
        fisher = f"adaqn.AccumulatedFisher({size}, batch_size={given['fisher_batch_size']!r})"
        fields_of.setdefault("pairs", []).append(f"curvature={fisher}")
    words = [f"{place}=adaqn.{_KINDS[place].__name__}({', '.join(found)})" for place, found in fields_of.items()]
    if set(given) & set(PLACES) == {"acceptance"}:
        words = [f"reject={_written(_value('acceptance', given['acceptance']))}"]
    if "scaling_eps" in given:
        words.append(f"scaling=adaqn.{SCALINGS[str(usual.scaling)].__name__}(eps={given['scaling_eps']!r})")
    if {"min_cycle_length", "max_cycle_length"} & set(given):
        words.append(f"cycle_length=({given.get('min_cycle_length', 2)}, {given.get('max_cycle_length', 20)})")
    return ", ".join(words)


def _written(value: Any) -> str:
    """As one would type it."""
    if isinstance(value, torch.device):
        return repr(str(value))
    simple = value is None or isinstance(value, str | int | float | bool | torch.dtype)
    name = getattr(value, "__name__", "...")  # of a function
    return repr(value) if simple else name if name.isidentifier() else "..."


def _value(name: str, value: Any) -> Any:
    if name in _NEVER and value is None:
        return 0
    if name == "acceptance" and value == "auto":
        return "paired"
    return value != "keep" if name == "momentum_on_reject" else value


def attribute_error(optimizer: object, name: str) -> AttributeError:
    """For an attribute that is not there."""
    message = f"{type(optimizer).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{message}: {_ATTRIBUTES[name]}" if name in _ATTRIBUTES else message)


def from_flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of today's optimizers from flat names; what is not among them is passed on.

    >>> from_flat({"preset": "paper", "memory_size": 3, "acceptance": "auto"})["pairs"].memory_size
    3
    """
    arguments: dict[str, Any] = {name: value for name, value in options.items() if name not in FLAT}
    for place, kind in _KINDS.items():
        chosen = {
            PLACES[name][1]: _value(name, value)
            for name, value in options.items()
            if PLACES.get(name, ("", ""))[0] == place
        }
        if chosen:
            arguments[place] = kind(**chosen)
    if options.get("scaling_eps") is not None:
        arguments["scaling"] = _scaling_with(options.get("scaling"), options.get("preset"), options["scaling_eps"])
    if options.get("fisher_batch_size") is not None:
        pairs = arguments.get("pairs", PairOptions())
        size = given(pairs.fisher_size or PRESETS[options.get("preset", "default")].pairs.fisher_size)
        known = {field.name: getattr(pairs, field.name) for field in fields(pairs)}
        fisher = AccumulatedFisher(size, batch_size=options["fisher_batch_size"])
        arguments["pairs"] = PairOptions(**{**known, "curvature": fisher})
    if options.get("cycle_length") == "auto":
        bounds = options.get("min_cycle_length", 2), options.get("max_cycle_length", 20)
        arguments["cycle_length"] = bounds
    return arguments


def _scaling_with(scaling: Any, preset: Any, eps: float) -> Any:
    name: Any = PRESETS[preset or "default"].scaling if scaling is None else scaling
    kind = choose("scaling", name, SCALINGS)
    if "eps" not in inspect.signature(kind).parameters:
        raise ValueError(f"scaling_eps={eps} has no meaning with scaling={name!r}: leave it out")
    return kind(eps=eps)  # type: ignore[call-arg]


def flat_preset(name: str, options: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """A preset by flat names, as 0.1 wrote it; with room for pairs where these options ask for some."""
    p = PRESETS[name]
    fields_of_pairs = {option: field for option, (place, field) in PLACES.items() if place == "pairs"}
    asked = any(
        options[option] != getattr(p.pairs, field)
        for option, field in fields_of_pairs.items()
        if option in options and option != "memory_size"
    )
    return {
        "lr": p.lr,
        "scaling": p.scaling,
        "momentum": p.momentum,
        "nesterov": p.nesterov,
        "cycle_length": p.cycle_length,
        "memory_size": p.pairs.memory_size or (PAIRS_IF_ASKED if asked else 0),
        "fisher_size": p.pairs.fisher_size,
        "damping": p.pairs.damping,
        "curvature_test": p.pairs.test,
        "acceptance": p.reject.test,
        "reject_window": p.reject.window,
    }
