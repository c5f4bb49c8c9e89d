"""Loading the saved state of an optimizer, for all optimizers here by one path.

All of it is checked, the values of the param groups too; a new state is made from it; only then it takes the place of
the old one. So a state that does not fit changes nothing.

torch's own ``load_state_dict`` casts every tensor to its parameter's dtype and device. Who keeps other tensors takes
them out before torch sees them, and puts them back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from adaqn.core.checks import without_data

T = TypeVar("T")
Entry = dict[str, Any]
Groups = Sequence[dict[str, Any]]
Restore = Callable[[dict[str, Any]], tuple[T, dict[str, Any]]]
"""The saved dictionary → (what is made of it, or an error; what is left for torch to load)."""

_TORCHS_OWN = ("differentiable",)
"""torch puts it among the defaults whenever a state is loaded."""


def load_state(
    optimizer: Optimizer,
    state_dict: dict[str, Any],
    *,
    check_groups: Callable[[Groups], object],
    restore: Restore[T],
    place: Callable[[T], None],
    optional: Collection[str] = (),
) -> None:
    """Restore into something new, all of it checked, and then swap.

    Args:
        optimizer: whose ``load_state_dict`` this is.
        state_dict: what it was given.
        check_groups: raises if values of the saved groups are none that a step can go by.
        restore: the last hook before torch's own loading; raises if the state does not fit, and changes nothing.
        place: puts what was made into the optimizer, the first hook after torch's loading. It must not raise.
        optional: values of groups that older versions did not save.
    """
    if not isinstance(state_dict, dict):
        raise ValueError(f"not the state_dict of an optimizer, but {type(state_dict).__name__}")
    made: list[T] = []

    def take(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        check_structure(saved, optimizer.param_groups)
        new, rest = restore(saved)  # first, for it knows best why a state of another method does not fit
        _check_saved_groups(saved["param_groups"], set(optimizer.defaults) - {*optional, *_TORCHS_OWN}, check_groups)
        made.append(new)
        return rest

    before = optimizer.register_load_state_dict_pre_hook(take)
    after = optimizer.register_load_state_dict_post_hook(lambda _: place(made[0]), prepend=True)
    try:
        Optimizer.load_state_dict(optimizer, state_dict)
    finally:
        before.remove()
        after.remove()


def check_structure(saved: Any, groups: Groups) -> None:
    """Is that the state of an optimizer with such groups? One error if not."""
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= set(saved):
        raise ValueError("not the state_dict of an optimizer: it has no 'state' and 'param_groups'")
    theirs = saved["param_groups"]
    if not isinstance(theirs, list | tuple) or not all(isinstance(group, dict) for group in theirs):
        raise ValueError("the saved 'param_groups' are not a list of dictionaries: the state is damaged")
    if not all(isinstance(group.get("params"), list | tuple) for group in theirs):
        raise ValueError("a saved param group has no list of 'params': the state is damaged")
    keys = [key for group in theirs for key in group["params"]]
    if not all(isinstance(key, int | str) for key in keys) or len(set(keys)) < len(keys):
        raise ValueError("the saved 'params' are not different numbers or names: the state is damaged")
    of_ours, of_theirs = ([len(group["params"]) for group in which] for which in (groups, theirs))
    if sum(of_ours) != sum(of_theirs):
        raise ValueError(f"the saved state is of {sum(of_theirs)} parameters, and this optimizer has {sum(of_ours)}")
    if of_ours != of_theirs:
        raise ValueError(f"the saved state has param groups of {of_theirs} parameters, and this optimizer {of_ours}")
    state = saved["state"]
    if not isinstance(state, Mapping) or not all(isinstance(state[key], dict) for key in keys if key in state):
        raise ValueError("the saved 'state' is not a dictionary of dictionaries: the state is damaged")
    for index, entry in entries_by_parameter(saved).items():
        for name, value in entry.items():
            if isinstance(value, Tensor) and (fault := without_data(value)):
                raise ValueError(f"the saved {name!r} of parameter {index} is {fault}: the state is damaged")


def _check_saved_groups(groups: Groups, needed: set[str], check: Callable[[Groups], object]) -> None:
    for i, group in enumerate(groups):
        if missing := sorted(needed - set(group)):
            raise ValueError(
                f"param group {i} of the saved state has no {missing[0]!r}: it was saved by another optimizer, or it "
                "is damaged"
            )
        for name, value in group.items():
            fault = without_data(value) if isinstance(value, Tensor) else None
            if fault is None and isinstance(value, Tensor) and not value.is_leaf:
                fault = "a tensor with a graph, which cannot be copied"
            if fault is not None:
                raise ValueError(f"the param groups of the saved state: {name} of group {i} is {fault}")
    try:
        check(groups)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # the last two where numbers are compared
        raise ValueError(f"the param groups of the saved state: {error}") from error


def entries_by_parameter(state_dict: dict[str, Any]) -> dict[int, Entry]:
    """Index of a parameter → its saved state, by the order of the groups.

    >>> entries_by_parameter({"state": {7: {"step": 3}}, "param_groups": [{"params": [4, 7]}]})
    {1: {'step': 3}}
    """
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    return {i: state_dict["state"][key] for i, key in enumerate(keys) if key in state_dict["state"]}
