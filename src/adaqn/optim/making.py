"""A state is made: for parameters of which nothing is known, or for others in mid-training."""

from __future__ import annotations

import torch
from torch import Tensor

from adaqn.optim.curvatures import ModelCurvature
from adaqn.optim.layout import size_of_state, vectors_kept
from adaqn.optim.memory import check_fits
from adaqn.optim.method import Method
from adaqn.optim.state import State
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.sharded import check_parts, flat_parameters


def flat_for(method: Method, params: list[Tensor]) -> FlatParameters:
    """The vector of these parameters, as they lie on the processes at work now."""
    flat = flat_parameters(
        params, method.process_group, method.scaling, shard_history=method.storage.shard_history,
        vectors=vectors_kept(method),
    )  # fmt: skip
    check_parts(flat, method.scaling, method.curvature, method.storage.fisher_device)
    return flat


def new_state(method: Method, flat: FlatParameters, *, momentum: bool) -> State:
    """For parameters of which nothing is known yet."""
    _check_memory(method, flat, momentum=momentum)
    parts = method.parts()
    if isinstance(parts.curvature, ModelCurvature):
        parts.curvature.attach(flat)
    return State(flat, method, parts, momentum=momentum)


def _check_memory(method: Method, flat: FlatParameters, *, momentum: bool) -> None:
    """Before anything is made: memory that is promised and not there ends a process without a word."""
    size, elsewhere = size_of_state(flat, method, momentum=momentum), method.storage.fisher_device
    what, advice = f"the history of {flat.n:,} parameters", "keep fewer pairs, or fewer gradients in F̃"
    check_fits(size.total - (0 if elsewhere is None else size.gradients), flat.device, what, advice)
    if elsewhere is not None:
        check_fits(size.gradients, torch.device(elsewhere), what, advice)


def moved(old: State, params: list[Tensor]) -> State:
    """A state for other parameters in mid-training, in the place of the old one.

    H0's accumulators and the wide weights of the parameters that stay are carried over; the history starts anew.
    """
    flat = flat_for(old.method, params)
    old.settle()
    if isinstance(old.curvature, ModelCurvature):
        old.curvature.attach(flat)
    known = old.h0_by_parameter()  # before its H0 gets new tensors: one object serves both states
    new = State(flat, old.method, old.parts, momentum=old.momentum is not None, counters=old.counters)
    new.take_h0(old.flat, known)
    if old.master is not None and new.master is not None:
        before = {id(p): i for i, p in enumerate(old.flat.params)}
        for i, p in enumerate(flat.params):
            j = before.get(id(p))
            if j is not None and flat.saved_shape(i) == old.flat.saved_shape(j):
                view = flat.views(new.master)[i]
                view.copy_(flat.held(i, old.flat.saved(j, old.flat.views(old.master)[j]), view))
        new.anchor.copy_(new.master)
    return new
