"""A memory for other parameters in mid-training: what is known of those that stay goes on."""

from __future__ import annotations

from collections.abc import Callable

from adaqn.optim.flat import FlatParameters
from adaqn.optim.memory import Memory


def rebuilt(old: Memory, flat: FlatParameters, make: Callable[[FlatParameters], Memory]) -> Memory:
    """H0's accumulators and the wide weights are carried over; curvature history starts anew."""
    scaling = old.scaling  # one object for both: making the new memory gives it new tensors
    numbers = [scaling.numbers(i) for i in range(len(old.flat.params))]
    vectors, tensors = dict(scaling.vectors), list(scaling.tensors)
    new = make(flat)
    before = {id(p): i for i, p in enumerate(old.flat.params)}
    for i, p in enumerate(flat.params):
        j = before.get(id(p))
        if j is None or flat.shapes[i] != old.flat.shapes[j]:
            continue
        scaling.load_numbers(i, numbers[j])
        for name, vector in vectors.items():
            new.h0_flat.views(scaling.vectors[name])[i].copy_(old.h0_flat.views(vector)[j])
        for name, tensor in tensors[j].items():
            scaling.tensors[i][name].copy_(tensor)
        if old.master is not None and new.master is not None:
            flat.views(new.master)[i].copy_(old.flat.views(old.master)[j])
    if new.master is not None:
        new.anchor.copy_(new.master)
    return new
