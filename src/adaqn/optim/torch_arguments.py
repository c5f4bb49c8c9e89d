"""What is left over where an optimizer of torch's stood: its arguments, and what to write instead; its state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adaqn.core.scaling import Adam, Scaling
from adaqn.core.scaling_names import SCALINGS

_ONE_VECTOR = "all parameters are updated as one vector anyway"
NOT_NEEDED = {
    "foreach": _ONE_VECTOR,
    "fused": _ONE_VECTOR,
    "amsgrad": "there is no maximum of the second moments here",
    "centered": "H0 subtracts no mean",
    "capturable": "steps are not captured in CUDA graphs",
    "differentiable": "no gradient flows through a step",
    "decoupled_weight_decay": "weight_decay is always decoupled here, as in AdamW",
    "dampening": "momentum is an average here, as in Adam",
    "lr_decay": "a scheduler of torch does the same",
    "initial_accumulator_value": "H0 has its eps for that",
}
"""Name → why it can be left out."""
OF_FAMILY = {
    **NOT_NEEDED,
    **dict.fromkeys(("betas", "alpha", "momentum", "nesterov", "dampening", "eps"), "it averages no gradients"),
}
"""The same for methods without averages."""
OF_WHOLE = {
    **OF_FAMILY,
    "weight_decay": "add weight_decay / 2 * w.square().sum() of each parameter to the loss in the closure",
}
"""The same for methods that search along the loss itself."""
_AVERAGES = ("betas", "alpha", "eps")


def advice(given: Mapping[str, Any], scaling: type[Scaling] | None, reasons: Mapping[str, str]) -> list[str]:
    """What to do about each argument of torch's among those given.

    Args:
        given: by name; those that are not torch's are left alone.
        scaling: the H0 whose options some of them become; ``None`` where there is none to choose.
        reasons: why the others can be left out.

    >>> advice({"betas": (0.9, 0.999), "fused": True}, Adam, NOT_NEEDED)[0]
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
    first, decay = _pair(averages["betas"]) if "betas" in averages else (None, averages.get("alpha"))
    options = {"decay": decay, "eps": averages.get("eps")}
    known = inspect.signature(scaling).parameters
    if any(value is not None and name not in known for name, value in options.items()):
        scaling = Adam
    module = "adaqn." if scaling in SCALINGS.values() else ""
    inside = ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
    momentum = [] if first is None else [f"momentum={first}"]
    return ", ".join([*momentum, f"scaling={module}{scaling.__name__}({inside})"])


def _pair(betas: Any) -> tuple[Any, Any]:
    return tuple(betas) if isinstance(betas, tuple | list) and len(betas) == 2 else ("β1", "β2")


def check_torchs_in_group(group: Mapping[str, Any], scaling: type[Scaling] | None, reasons: Mapping[str, str]) -> None:
    """One error for arguments of torch's in a param group, where they would change nothing."""
    found = advice(group, scaling, reasons)
    if not found:
        return
    names = [name for name in group if name in reasons or name in _AVERAGES]
    more = "; scaling is given to the optimizer, for all groups" if any("scaling=" in word for word in found) else ""
    raise ValueError(f"{names} in a param group would change nothing: {'; '.join(found)}{more}")


_OF_TORCH = {"exp_avg", "exp_avg_sq", "square_avg", "sum", "prev", "acc_delta", "exp_inf", "ax"}
"""By a step and one of these the state of an optimizer of torch's is known."""


def is_torchs(entry: dict[str, Any]) -> bool:
    """Did another optimizer write this state of a parameter? Otherwise it is ours, or somebody's note."""
    return bool("step" in entry and _OF_TORCH & set(entry)) or isinstance(entry.get("momentum_buffer"), Tensor)
