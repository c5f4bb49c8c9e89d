"""H0 from the state of a torch optimizer, so that a run in progress can switch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adagrad, Adam, RMSProp, Scaling
from adaqn.optim.torch_arguments import is_torchs
from adaqn.parameters.flat import FlatParameters, as_real

_OF_GROUPS = {
    "betas": "torch's Adam or AdamW",
    "dampening": "torch's SGD",
    "lr_decay": "torch's Adagrad",
    "lambd": "torch's ASGD",
    "etas": "torch's Rprop",
    "centered": "torch's RMSprop",
    **dict.fromkeys(("foreach", "fused", "capturable", "nesterov", "eps"), "another optimizer"),
}
"""A value that groups of ours never have → whose they are, the first that fits."""
_TORCH_KEYS = ((Adam, "exp_avg_sq", "Adam or AdamW"), (RMSProp, "square_avg", "RMSprop"), (Adagrad, "sum", "Adagrad"))


def refuse_torchs(entries: Iterable[dict[str, Any]], groups: Iterable[dict[str, Any]], scaling: Scaling) -> None:
    """One error for the checkpoint of a torch optimizer, with the way from there to here."""
    entries, values = list(entries), {name for group in groups for name in group}
    theirs = next(filter(is_torchs, entries), None)
    whose = next((name for value, name in _OF_GROUPS.items() if value in values), None)
    if theirs is None and (entries or whose is None):
        return
    known = [(kind, f"torch's {name}") for kind, key, name in _TORCH_KEYS if theirs is not None and key in theirs]
    message = f"the state was saved by {known[0][1] if known else whose or 'another optimizer'}, not by this one"
    if theirs is None and whose in [f"torch's {name}" for _, _, name in _TORCH_KEYS]:
        raise ValueError(f"{message}, and before its first step: start without it")
    if not known:
        raise ValueError(f"{message}, and has no second moments: load the weights alone and start without it")
    (kind, _), *_ = known
    message += ": load the weights, and then take over its second moments with opt.warm_start(state)"
    if isinstance(scaling, Kronecker) or not isinstance(scaling, kind):
        preset = " (preset='modern')" if kind is Adam else ""
        name = kind.__name__.lower()
        message += f". That needs scaling={name!r}{preset}; with {type(scaling).__name__} start without the state"
    raise ValueError(message)


def check_source(source: Optimizer | dict[str, Any], scaling: Scaling) -> None:
    """Is it an optimizer, or the state_dict of one, with the decay of our scaling?"""
    groups = source.param_groups if isinstance(source, Optimizer) else None
    if isinstance(source, dict) and {"state", "param_groups"} <= set(source):
        groups = source["param_groups"]
    if groups is None:
        raise ValueError(f"warm_start needs a torch optimizer or its state_dict, got {type(source).__name__}")
    if isinstance(scaling, Kronecker):
        raise ValueError(
            "the second moments of a torch optimizer are for single weights, and those of scaling='kronecker' for "
            "combinations of weights: start without warm_start, or use scaling='adam'"
        )
    if not isinstance(scaling, RMSProp):
        return
    for group in groups:
        decay = group["betas"][1] if "betas" in group else group.get("alpha", scaling.decay)
        if decay != scaling.decay:
            kind = type(scaling).__name__
            raise ValueError(
                f"the source averages with a decay of {decay} and this H0 with {scaling.decay}: build the optimizer "
                f"with scaling={kind}(decay={decay}) from adaqn"
            )


def source_states(source: Optimizer | dict[str, Any], params: list[Tensor]) -> list[dict[str, Any]]:
    """The source's state of each of ``params``: by identity from an optimizer, by order from a state_dict."""
    if isinstance(source, Optimizer):
        return [source.state.get(p, {}) for p in params]
    indices = [index for group in source["param_groups"] for index in group["params"]]
    if len(indices) != len(params):
        raise ValueError(f"the state_dict is of {len(indices)} parameters and this optimizer has {len(params)}")
    return [source["state"].get(index, {}) for index in indices]


def fill_scaling(scaling: Scaling, views: list[Tensor], states: list[dict[str, Any]], flat: FlatParameters) -> None:
    """Copy second moments into the scaling's vector, given as one view per parameter.

    Parameters without state keep their initial value.
    """
    key, name = next(((k, n) for kind, k, n in _TORCH_KEYS if isinstance(scaling, kind)), ("", ""))
    if not key:
        raise ValueError(
            f"{type(scaling).__name__} keeps no second moments that could be filled: use scaling='adagrad', "
            "'rmsprop' or 'adam'"
        )
    if not any(key in state for state in states):
        found = sorted({k for state in states for k in state}) or "no state at all"
        raise ValueError(f"scaling={type(scaling).__name__} starts from torch's {name} (key {key!r}); found {found}")
    saved = [as_real(state[key]) if key in state else None for state in states]
    for index, (p, moments) in enumerate(zip(flat.params, saved, strict=True)):
        if moments is not None and moments.shape != as_real(p).shape:
            theirs, ours = tuple(moments.shape), tuple(as_real(p).shape)
            raise ValueError(f"the source has {key!r} of shape {theirs} for parameter {index}, whose shape is {ours}")
    for index, (view, moments) in enumerate(zip(views, saved, strict=True)):
        if moments is None:
            continue
        view.copy_(flat.held(index, moments, view))
        if isinstance(scaling, Adam):
            scaling.load_numbers(index, {"step": float(states[index]["step"])})
        elif isinstance(scaling, Adagrad):
            view.clamp_(min=scaling.initial_value)  # torch's sum may start at 0
