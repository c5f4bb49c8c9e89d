"""What is left over where an optimizer of torch's stood: its arguments, and what to write instead; its state."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from torch import Tensor

from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adam, Scaling
from adaqn.core.scaling_names import SCALINGS
from adaqn.optim.settings import PRESETS
from adaqn.parameters.group_keys import meant

P = ParamSpec("P")
_ONE_VECTOR = "all parameters are updated as one vector anyway"
_DECOUPLED = "weight_decay is always decoupled here, as in AdamW"
NOT_NEEDED = {
    "foreach": _ONE_VECTOR,
    "fused": _ONE_VECTOR,
    "amsgrad": "there is no maximum of the second moments here",
    "centered": "H0 subtracts no mean",
    "capturable": "steps are not captured in CUDA graphs",
    "differentiable": "no gradient flows through a step",
    "decoupled_weight_decay": _DECOUPLED,
    "dampening": "momentum is an average here, as in Adam",
    "lr_decay": "a scheduler of torch does the same",
    "initial_accumulator_value": "H0 has its eps for that",
    "rho": "the decay of H0 is that of its scaling, such as adaqn.Adam(decay=0.999)",
    "momentum_decay": "momentum is constant, or what a scheduler sets",
    "weight_decouple": _DECOUPLED,
    "adam_w_mode": _DECOUPLED,
    **dict.fromkeys(("correct_bias", "bias_correction"), "averages are always bias corrected"),
    "shampoo_beta": "both averages decay alike, unless scaling=adaqn.Kronecker(basis_decay=...) is given",
    "max_precond_dim": "longer sides are cut into blocks, of scaling=adaqn.Kronecker(block_size=...)",
    "merge_dims": "more than two dimensions are always one matrix",
    "precondition_1d": "vectors have Adam's diagonal",
    "normalize_grads": "gradients are not normalized",
    "data_format": "it makes no difference here",
}
"""Name → why it can be left out."""
OF_FAMILY = {
    **NOT_NEEDED,
    **dict.fromkeys(
        ("betas", "beta2", "alpha", "rho", "momentum", "momentum_decay", "nesterov", "dampening", "eps"),
        "it averages no gradients",
    ),
    **dict.fromkeys(("precondition_frequency", "shampoo_beta", "max_precond_dim"), "it has no bases of SOAP's"),
}
"""The same for methods without averages."""
OF_WHOLE = {
    **OF_FAMILY,
    "weight_decay": "add weight_decay / 2 * w.square().sum() of each parameter to the loss in the closure",
}
"""The same for methods that search along the loss itself."""
_OPTIONS = {"alpha": "decay", "beta2": "decay", "eps": "eps", "precondition_frequency": "refresh"}
"""Name → the option of an H0 that it becomes."""
_AVERAGES = ("betas", *_OPTIONS)
_OF_SAM = ("rho", "weight_decouple")
"""Sharpness-aware minimization keeps these in its groups, beside "adaptive", and hands the groups on."""
_BY_POSITION = ("betas", "eps", "weight_decay")
"""Adam's arguments after lr."""


def advice(given: Mapping[str, Any], scaling: type[Scaling] | None, reasons: Mapping[str, str]) -> list[str]:
    """What to do about each argument of the constructor that is torch's, or another spelling of ours.

    >>> advice({"learning_rate": 0.1, "warmup_steps": 100}, Adam, NOT_NEEDED)
    ['write lr=0.1', 'write warm_up=100']
    """
    warms_up = ("warm_up",) if reasons is NOT_NEEDED else ()  # the others follow torch's schedulers
    ours = [name for name in ("lr", "weight_decay", "momentum", *warms_up) if name not in reasons]
    words = [(meant(name, ours), value) for name, value in given.items()]
    return _of_torch(given, scaling, reasons) + [f"write {name}={value!r}" for name, value in words if name]


def others_by_name(init: Callable[P, None]) -> Callable[P, None]:
    """AdaQN's constructor, with one error for what Adam or SGD take by position behind params and lr."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if len(args) > len(("self", "params", "lr")):
            preset = PRESETS.get(str(kwargs.get("preset")), PRESETS["default"])
            scaling = kwargs.get("scaling") or preset.scaling
            kind = type(scaling) if isinstance(scaling, Scaling) else SCALINGS.get(str(scaling), Adam)
            raise TypeError(_about_position(args[3:], kind))
        init(*args, **kwargs)

    return checked


def _about_position(values: Sequence[Any], scaling: type[Scaling]) -> str:
    first = values[0]
    if isinstance(first, tuple | list):
        given = dict(zip(_BY_POSITION, values, strict=False))
        instead = ["in Adam that is betas", *_of_torch(given, scaling, NOT_NEEDED)]
        instead += [f"write weight_decay={given['weight_decay']!r}"] if "weight_decay" in given else []
    elif isinstance(first, numbers.Real):
        instead = [f"in SGD that is momentum: write momentum={first!r}"]
    else:
        instead = ["write monitor=... if it is the monitor"] if callable(first) else ["write its name before it"]
    shown = type(first).__name__ if callable(first) else repr(first)
    return f"AdaQN takes params and lr by position, and all else by name; got {shown} as third argument: " + "; ".join(
        instead
    )


def _of_torch(given: Mapping[str, Any], scaling: type[Scaling] | None, reasons: Mapping[str, str]) -> list[str]:
    """What to do about each argument of torch's among those given.

    Args:
        given: by name; those that are not torch's are left alone.
        scaling: the H0 whose options some of them become; ``None`` where there is none to choose.
        reasons: why the others can be left out.

    >>> _of_torch({"betas": (0.9, 0.999), "fused": True}, Adam, NOT_NEEDED)[0]
    'the equivalent of betas is momentum=0.9, scaling=adaqn.Adam(decay=0.999), or leave it out for the usual values'
    """
    averages = {} if scaling is None else {name: value for name, value in given.items() if name in _AVERAGES}
    found = []
    if averages and scaling is not None:
        names = ", ".join(averages)
        words = f"the equivalent of {names} is {_equivalent(averages, scaling)}"
        found.append(f"{words}, or leave {'it' if len(averages) == 1 else 'them'} out for the usual values")
    return found + [f"leave out {name}: {reasons[name]}" for name in given if name in reasons and name not in averages]


def _equivalent(averages: Mapping[str, Any], scaling: type[Scaling]) -> str:
    """In our words, as one would type it."""
    first, decay = _pair(averages["betas"]) if "betas" in averages else (None, None)
    options = {} if decay is None else {"decay": decay}
    options |= {_OPTIONS[name]: value for name, value in averages.items() if name in _OPTIONS}
    known = inspect.signature(scaling).parameters
    if any(name not in known for name in options):
        scaling = Kronecker if "refresh" in options else Adam
    module = "adaqn." if scaling in SCALINGS.values() else ""
    inside = ", ".join(f"{name}={value}" for name, value in options.items())
    momentum = [] if first is None else [f"momentum={first}"]
    return ", ".join([*momentum, f"scaling={module}{scaling.__name__}({inside})"])


def _pair(betas: Any) -> tuple[Any, Any]:
    return tuple(betas) if isinstance(betas, tuple | list) and len(betas) == 2 else ("β1", "β2")


def check_torchs_in_group(group: Mapping[str, Any], scaling: type[Scaling] | None, reasons: Mapping[str, str]) -> None:
    """One error for arguments of torch's in a param group, where they would change nothing."""
    if "adaptive" in group:
        group = {name: value for name, value in group.items() if name not in _OF_SAM}
    found = _of_torch(group, scaling, reasons)
    if not found:
        return
    names = ", ".join(repr(name) for name in group if name in reasons or name in _AVERAGES)
    more = "; scaling is given to the optimizer, for all groups" if any("scaling=" in word for word in found) else ""
    raise ValueError(f"{names} in a param group would change nothing: {'; '.join(found)}{more}")


_OF_TORCH = {"exp_avg", "exp_avg_sq", "square_avg", "sum", "prev", "acc_delta", "exp_inf", "ax"}
"""By a step and one of these the state of an optimizer of torch's is known."""


def is_torchs(entry: dict[str, Any]) -> bool:
    """Did another optimizer write this state of a parameter? Otherwise it is ours, or somebody's note."""
    return bool("step" in entry and _OF_TORCH & set(entry)) or isinstance(entry.get("momentum_buffer"), Tensor)
