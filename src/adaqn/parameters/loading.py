"""Loading the saved state of an optimizer.

torch's own ``load_state_dict`` casts every tensor to its parameter's dtype and device. Who keeps other tensors takes
them out before torch sees them, and puts them back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

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


def entries_by_parameter(state_dict: dict[str, Any], count: int) -> dict[int, Entry]:
    """Index of a parameter → its saved state, by the order of the groups; one error if it is not of so many.

    >>> entries_by_parameter({"state": {7: {"step": 3}}, "param_groups": [{"params": [4, 7]}]}, 2)
    {1: {'step': 3}}
    """
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise ValueError("not the state_dict of an optimizer: it has no 'state' and 'param_groups'")
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    if len(keys) != count:
        raise ValueError(f"the saved state is of {len(keys)} parameters, and this optimizer has {count}")
    return {i: state_dict["state"][key] for i, key in enumerate(keys) if key in state_dict["state"]}
