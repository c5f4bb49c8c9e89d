"""From the gradient and the param groups to the step: w ← w − Λ^½ H Λ^½ g.

Also where each process has a part of every vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.core.checks import number, step_size
from adaqn.core.direction import gram
from adaqn.core.products import dots, size_of
from adaqn.optim.removed import FLAT
from adaqn.optim.state import State

Group = dict[str, Any]
_PER_GROUP = ("lr", "weight_decay", "momentum")
_OF_ALL = {
    "cycle_length", "memory_size", "fisher_size", "monitor", "scaling", "maximize", "nesterov", "damping", "preset",
    "process_group", "pairs", "reject", "storage", *FLAT,
}  # fmt: skip


def check_group(group: Group, defaults: Group) -> None:
    """The numbers of a param group; other options are for all parameters at once."""
    for name in ("lr", "weight_decay"):
        step_size(name, group[name])
    if "momentum" in defaults:
        check_momentum(group["momentum"])
    unknown = (_OF_ALL | ({"momentum"} - set(defaults))) & set(group)
    if unknown:
        own = " and ".join(name for name in _PER_GROUP if name in defaults)
        raise ValueError(
            f"{sorted(unknown)} in a param group: one quasi-Newton matrix spans all parameters, so give it to "
            f"the optimizer; groups may have their own {own}"
        )


def check_momentum(beta: Any) -> float:
    """β, also as a scheduler has left it."""
    number("momentum", beta)
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"momentum must lie in [0, 1), got {beta}: 0 is none, 0.9 is usual")
    return float(beta)


def check_scheduled(groups: Iterable[Group]) -> None:
    """What schedulers change, before each step."""
    for group in groups:
        # A tensor's value would have to be read from the device.
        if not isinstance(group["lr"], Tensor) and not group["lr"] >= 0.0:
            raise ValueError(f"lr must be at least 0, got {group['lr']}: was it set by a scheduler?")
        if group.get("momentum", 0.0) != 0.0:
            check_momentum(group["momentum"])


class StepSizes:
    """lr, weight decay and momentum of each trained parameter, as the groups have them now.

    Args:
        every: all param groups.
        groups: the group of each trained parameter, in the order of the vector.
        multiplier: of all step sizes.
    """

    def __init__(self, every: Sequence[Group], groups: Sequence[Group], multiplier: float) -> None:
        self.groups, self.multiplier = groups, multiplier
        first = groups[0]["lr"]
        self.common = first if all(_same(group["lr"], first) for group in every) else None
        """lr, where all groups have the same."""

    def roots(self) -> list[float | Tensor] | None:
        """Λ^½ by parameter; ``None`` where all step sizes are the same."""
        if self.common is not None:
            return None
        return [(scalar(group["lr"]) * self.multiplier) ** 0.5 for group in self.groups]

    def betas(self) -> list[float]:
        """β of the momentum by parameter."""
        return [group.get("momentum", 0.0) for group in self.groups]


def any_momentum(groups: Iterable[Group]) -> bool:
    return any(group.get("momentum", 0.0) for group in groups)


def scalar(value: Any) -> Any:
    """A number, or a tensor without dimensions: one of a single element would not broadcast to a scalar parameter."""
    return value.reshape(()) if isinstance(value, Tensor) and value.dim() else value


def _same(a: float | Tensor, b: float | Tensor) -> bool:
    # Tensors are compared by identity: their values would have to be read from the device.
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def measure(state: State, sizes: StepSizes, present: list[int]) -> tuple[float, Tensor | None]:
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
