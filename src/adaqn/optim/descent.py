"""From the gradient and the param groups to the step: w ← w − Λ^½ H Λ^½ g.

Also where each process has a part of every vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.core.checks import LARGEST_STEP, number, step_size
from adaqn.core.direction import applied, gram
from adaqn.core.products import dots, size_of
from adaqn.core.scaling import runs
from adaqn.optim.removed import FLAT
from adaqn.optim.state import State

Group = dict[str, Any]
_PER_GROUP = ("lr", "weight_decay", "momentum")
OF_ALL = {
    "cycle_length", "memory_size", "fisher_size", "monitor", "scaling", "maximize", "nesterov", "damping", "preset",
    "process_group", "pairs", "reject", "storage", *FLAT,
}  # fmt: skip


def check_group(group: Group, defaults: Group) -> None:
    """The numbers of a param group; other options are for all parameters at once."""
    for name in ("lr", "weight_decay"):
        step_size(name, group[name])
    if "momentum" in defaults:
        check_momentum(group["momentum"])
    unknown = (OF_ALL | ({"momentum"} - set(defaults))) & set(group)
    if unknown:
        own = " and ".join(name for name in _PER_GROUP if name in defaults)
        names = ", ".join(map(repr, sorted(unknown)))
        raise ValueError(
            f"{names} in a param group: one quasi-Newton matrix spans all parameters, so give it to the optimizer; "
            f"groups may have their own {own}"
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
        lr = 0.0 if isinstance(group["lr"], Tensor) else group["lr"]
        if not 0.0 <= lr <= LARGEST_STEP:
            limit = f"at most {LARGEST_STEP:.2g}" if lr > LARGEST_STEP else "at least 0"
            raise ValueError(f"lr must be {limit}, got {lr}: was it set by a scheduler?")
        if group.get("momentum", 0.0) != 0.0:
            check_momentum(group["momentum"])


class StepSizes:
    """lr, weight decay and momentum of each trained parameter, as the groups have them now.

    Args:
        every: all param groups.
        groups: the group of each trained parameter, in the order of the vector.
        lengths: how long each of them is in the vector.
        multiplier: of all step sizes.
    """

    def __init__(self, every: Sequence[Group], groups: Sequence[Group], lengths: Sequence[int], multiplier: float):
        self.groups, self.lengths, self.multiplier = groups, lengths, multiplier
        first = groups[0]["lr"]
        self.common = first if all(_same(group["lr"], first) for group in every) else None
        """lr, where all groups have the same."""

    def stretches(self, present: Iterable[int]) -> list[tuple[slice, Group]]:
        """Neighbours of one group that are present, as one slice of the vector."""
        kinds: list[int | None] = [None] * len(self.groups)
        for i in present:
            kinds[i] = id(self.groups[i])
        by_id = {id(group): group for group in self.groups}
        return [(part, by_id[kind]) for part, kind in runs(self.lengths, kinds)]

    def decays(self, present: Iterable[int]) -> bool:
        """Is any weight to decay?"""
        return any(self.groups[i]["weight_decay"] != 0.0 for i in present)

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


def measure(state: State, sizes: StepSizes, present: list[int]) -> tuple[Tensor, Tensor | None]:
    """(1 if the gradient is finite and 0 if not, which the host does not learn; S·g where it came with it).

    In scratch the gradient is zero where it was not finite. With a vector in parts both are sums over the processes,
    and travel together (D19). The gradient that the recursion will see is made beforehand for that, in the memory of
    the direction; nothing else changes.
    """
    g, reduce, s_dot_g = state.scratch.gradient, state.flat.reduce, None
    square = g.dot(g).double().reshape(1)
    if state.flat.is_whole or state.method.direction is not gram or len(state.pairs) == 0:
        total = reduce(square)
    else:
        ahead = state.scratch.direction
        if state.momentum is None:
            ahead.copy_(g)
        else:
            state.momentum.preview(g, present, sizes.betas(), out=ahead)
        _scale(ahead, state, sizes)
        total = reduce(torch.cat([square, dots(state.pairs.S, ahead)]))
        s_dot_g = total[1:]
    ok = total[0].isfinite().to(g.dtype)
    for found in (g, s_dot_g):
        if found is not None:
            found.nan_to_num_(0.0, 0.0, 0.0).mul_(ok)  # nan times zero would be nan
    return ok, s_dot_g


def descend(state: State, sizes: StepSizes, present: list[int], s_dot_g: Tensor | None, ok: Tensor) -> None:
    """w ← w − Λ^½ H Λ^½ g with Λ the step sizes of the groups; only where there are gradients, and ``ok`` is 1."""
    _scale(state.scratch.gradient, state, sizes)
    d = _direction(state, s_dot_g, sizes)
    _scale(d, state, sizes)
    scale = _factor(state, sizes)
    if state.method.guarded and not math.isfinite(size_of(d, state.flat.reduce)):
        state.clear_history()
        d.zero_()
    if isinstance(scale, Tensor) or sizes.decays(present):
        d, scale = d.mul_(scale), 1.0
        _add_decay(state, sizes, present, d, ok)
    weights, steps = state.weights(), state.scratch.direction_parts
    torch._foreach_add_([weights[i] for i in present], [steps[i] for i in present], alpha=-scale)
    if state.master is not None:
        state.flat.scatter(state.master)
    else:
        state.flat.publish()


def _add_decay(state: State, sizes: StepSizes, present: list[int], d: Tensor, ok: Tensor) -> None:
    """d ← d + lr·decay·w, as in AdamW."""
    if sizes.decays(present):
        w = state.gather_weights()
        for part, group in sizes.stretches(present):
            if group["weight_decay"] != 0.0:
                share = scalar(group["lr"]) * sizes.multiplier * scalar(group["weight_decay"])
                d[part].addcmul_(w[part], ok * share)


def _direction(state: State, s_dot_g: Tensor | None, sizes: StepSizes) -> Tensor:
    """H·g, in scratch; g is spent."""
    g, out, flat = state.scratch.gradient, state.scratch.direction, state.flat
    h0 = BetweenStepSizes(state.h0, sizes) if state.method.scale == "current" else state.h0
    if s_dot_g is not None:
        return gram(g, state.pairs, h0, out=out, reduce=flat.reduce, s_dot_g=s_dot_g)
    if flat.is_whole:
        return state.method.direction(g, state.pairs, h0, out=out)
    return state.method.direction(g, state.pairs, h0, out=out, reduce=flat.reduce)


def _factor(state: State, sizes: StepSizes) -> Any:
    """Of the whole step: what is not in the direction yet."""
    if state.method.scale == "current":
        return sizes.multiplier
    return 1.0 if sizes.common is None else scalar(sizes.common) * sizes.multiplier


def _scale(vector: Tensor, state: State, sizes: StepSizes) -> None:
    """vector ← Λ^½ vector; as it is where all step sizes are the same, which are then a factor of the whole step.

    Where they are in the direction already, only what must not move is taken out: pairs would move it.
    """
    if state.method.scale == "current":
        for part, group in sizes.stretches(range(len(sizes.lengths))):
            lr = scalar(group["lr"])
            if isinstance(lr, Tensor) or lr == 0.0:
                vector[part].mul_(lr > 0.0)
    elif sizes.common is None:
        for part, group in sizes.stretches(range(len(sizes.lengths))):
            vector[part].mul_((scalar(group["lr"]) * sizes.multiplier) ** 0.5)


class BetweenStepSizes:
    """Λ^½ H0 Λ^½ in the place of H0, with Λ the step sizes of the groups: lr·H0 where they are the same (D34)."""

    def __init__(self, h0: Any, sizes: StepSizes) -> None:
        self.h0, self.sizes = h0, sizes

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        if self.sizes.common is not None:
            return applied(self.h0, v, out).mul_(scalar(self.sizes.common))
        return self._times_roots(applied(self.h0, self._times_roots(v.clone()), out))

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        if self.sizes.common is not None:
            found: Tensor = self.h0.apply_inverse(v, out)
            return found.div_(scalar(self.sizes.common))
        return self._over_roots(self.h0.apply_inverse(self._over_roots(v.clone()), out))

    def to_own_scale(self, s: Tensor, y: Tensor) -> None:
        """A pair of weights and gradients ← the same pair for H0 itself, of which Λ^½ H Λ^½ is made."""
        if self.sizes.common is not None:
            y.mul_(scalar(self.sizes.common))  # (s/√lr, √lr·y), in other units
        else:
            self._over_roots(s)
            self._times_roots(y)

    def _times_roots(self, v: Tensor) -> Tensor:
        for part, group in self.sizes.stretches(range(len(self.sizes.lengths))):
            v[part].mul_(scalar(group["lr"]) ** 0.5)
        return v

    def _over_roots(self, v: Tensor) -> Tensor:
        """Zero where the step size is."""
        for part, group in self.sizes.stretches(range(len(self.sizes.lengths))):
            lr = scalar(group["lr"])
            if isinstance(lr, Tensor):
                v[part].copy_(torch.where(lr > 0.0, v[part] / lr**0.5, 0.0))
            else:
                v[part].mul_(lr**-0.5 if lr > 0.0 else 0.0)
        return v
