"""From the gradient to the step: w ← w − Λ^½ H Λ^½ g, also where each process has a part of every vector."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adaqn.core.direction import gram
from adaqn.core.products import dots, size_of
from adaqn.optim.groups import StepSizes, scalar
from adaqn.optim.state import State


def look(state: State, sizes: StepSizes, present: list[int]) -> tuple[float, Tensor | None]:
    """(The size of the gradient, the one read per step from the device; and S·g where it came with it).

    With a vector in parts both are sums over the processes, and travel together (D19). The gradient that
    the recursion will see is made beforehand for that, in the memory of the direction; nothing else changes.
    """
    g, reduce = state.scratch.gradient, state.flat.reduce
    if state.flat.is_whole or state.method.direction is not gram or len(state.pairs) == 0:
        return size_of(g, reduce), None
    ahead = state.scratch.direction
    if state.momentum is None:
        ahead.copy_(g)
    else:
        state.momentum.preview(g, present, sizes.betas(), out=ahead)
    roots = sizes.roots()
    if roots is not None:
        _scale(state.scratch.direction_parts, roots)
    square = g.dot(g).double().reshape(1)
    total = reduce(torch.cat([square, dots(state.pairs.S, ahead)]))
    size = float(total[0])
    return size if size != 0.0 else size_of(g, reduce), total[1:]


def descend(state: State, sizes: StepSizes, present: list[int], s_dot_g: Tensor | None) -> None:
    """w ← w − Λ^½ H Λ^½ g with Λ the step sizes of the groups; only where there are gradients."""
    groups, multiplier, roots = sizes.groups, sizes.multiplier, sizes.roots()
    if roots is None:
        d, scale = _direction(state, s_dot_g), scalar(sizes.common) * multiplier
        if isinstance(scale, Tensor):
            d, scale = d.mul_(scale), 1.0
    else:
        _scale(state.scratch.gradient_parts, roots)
        d, scale = _direction(state, s_dot_g), 1.0
        _scale(state.scratch.direction_parts, roots)
    if state.method.guarded and not math.isfinite(size_of(d, state.flat.reduce)):
        state.clear_history()
        d.zero_()
    weights, steps = state.weights(), state.scratch.direction_parts
    for i in present:
        if groups[i]["weight_decay"] != 0.0:
            weights[i].mul_(1.0 - scalar(groups[i]["lr"]) * multiplier * scalar(groups[i]["weight_decay"]))
    torch._foreach_add_([weights[i] for i in present], [steps[i] for i in present], alpha=-scale)
    if state.master is not None:
        state.flat.scatter(state.master)
    else:
        state.flat.publish()


def _direction(state: State, s_dot_g: Tensor | None) -> Tensor:
    """H·g, in scratch; g is spent."""
    g, out, flat = state.scratch.gradient, state.scratch.direction, state.flat
    if s_dot_g is not None:
        return gram(g, state.pairs, state.h0, out=out, reduce=flat.reduce, s_dot_g=s_dot_g)
    if flat.is_whole:
        return state.method.direction(g, state.pairs, state.h0, out=out)
    return state.method.direction(g, state.pairs, state.h0, out=out, reduce=flat.reduce)


def _scale(parts: list[Tensor], factors: Sequence[float | Tensor]) -> None:
    for part, factor in zip(parts, factors, strict=True):
        part.mul_(factor)
