"""The parts of one step of K-FAC: factors, inverses, preconditioned gradients; functions of the state by parameter."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.baselines.kfac_factors import clip_scale, damped_inverses, precondition, running_average
from adaqn.baselines.kfac_layers import Block

State = MutableMapping[Tensor, dict[str, Any]]
ParamGroup = dict[str, Any]
Seen = list[tuple[Tensor, Tensor] | None]
"""A and G of each layer, where its calls were seen."""
Moves = list[tuple[ParamGroup, list[tuple[Tensor, Tensor]]]]
"""By group: parameters, and what to add to their momentum."""


def all_finite(loss: Any, params: Sequence[Tensor], seen: Seen) -> bool:
    """Are the loss, the gradients and what was seen of the layers?"""
    tensors = [p.grad for p in params if p.grad is not None]
    tensors += [factor for pair in seen if pair is not None for factor in pair]
    if isinstance(loss, Tensor):
        tensors.append(loss.detach())
    return bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())


def update_factors(state: State, blocks: Sequence[Block], seen: Seen, decay: float) -> None:
    for block, pair in zip(blocks, seen, strict=True):
        if pair is None:
            continue
        entry = state[block.weight]
        entry["estimates"] = count = entry.get("estimates", 0) + 1
        for name, new in zip(("A", "G"), pair, strict=True):
            entry[name] = running_average(entry.get(name), new, count, decay)


def update_inverses(state: State, layers: Sequence[tuple[Block, ParamGroup]], *, due: bool) -> bool:
    """Invert the factors of all these layers if that is due, else of those that have no inverse yet; were there any?"""
    stale = [(state[block.weight], group) for block, group in layers if due or "A_inverse" not in state[block.weight]]
    for entry, group in stale:
        entry["A_inverse"], entry["G_inverse"] = damped_inverses(entry["A"], entry["G"], group["damping"])
    return bool(stale)


def directions(
    state: State, layers: Sequence[tuple[Block, ParamGroup]], sign: float, kl_clip: float | None
) -> tuple[Moves, Tensor | None]:
    """Δ of every layer that has a gradient, and ν, the bound on all of them; no ν if one is not finite, or none is."""
    moves: Moves = []
    products = []
    for block, group in layers:
        gradient = block.gradient()
        if gradient is not None:
            entry = state[block.weight]
            delta = precondition(sign * gradient, entry["A_inverse"], entry["G_inverse"])
            products.append(sign * (delta * gradient).sum().double() * group["lr"] ** 2)
            moves.append((group, list(zip(block.params, block.split(delta), strict=True))))
    # An entry of Δ that is not finite makes Δ·∇ infinite or NaN, whatever the gradient: one flag tells of all.
    if not products or not bool(torch.stack(products).isfinite().all()):
        return moves, None
    return moves, clip_scale(products, kl_clip)


def descend(state: State, group: ParamGroup, p: Tensor, direction: Tensor) -> None:
    """v ← momentum v + Δ, w ← w − lr v, and weight decay."""
    if group["momentum"]:
        # Never in place: a state_dict that was taken keeps what it holds.
        velocity = state[p].get("momentum")
        direction = direction.contiguous() if velocity is None else group["momentum"] * velocity + direction
        state[p]["momentum"] = direction
    if group["weight_decay"]:
        p.mul_(1.0 - group["lr"] * group["weight_decay"])
    p.sub_(group["lr"] * direction)
