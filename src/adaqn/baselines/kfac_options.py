"""The options of K-FAC and what it refuses; every message names the value, the limit and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.baselines.kfac_layers import Block
from adaqn.core.checks import at_least_one, choose, number, step_size
from adaqn.parameters.flat import trainable
from adaqn.parameters.saved import LARGEST_WHOLE, check_number, check_range, check_tensor, plain


@dataclass(frozen=True)
class KFACOptions:
    """What holds for all layers."""

    fisher: str
    sharing: str
    loss_reduction: str
    terms_per_example: int
    factor_decay: float
    factor_every: int
    inverse_every: int
    kl_clip: float | None
    max_dimension: int
    others: str
    maximize: bool

    def __post_init__(self) -> None:
        choices = {
            "fisher": ("empirical", "sampled"),
            "sharing": ("expand", "reduce"),
            "loss_reduction": ("mean", "sum"),
            "others": ("refuse", "sgd"),
        }
        for name, allowed in choices.items():
            choose(name, getattr(self, name), dict.fromkeys(allowed))
        for name in ("terms_per_example", "factor_every", "inverse_every", "max_dimension"):
            at_least_one(name, getattr(self, name))
        number("factor_decay", self.factor_decay)
        if not 0.0 <= self.factor_decay < 1.0:
            raise ValueError(
                f"factor_decay must be at least 0 and less than 1, got {self.factor_decay}: 0 keeps the last batch only"
            )
        if self.kl_clip is not None:
            number("kl_clip", self.kl_clip)
            if not (math.isfinite(self.kl_clip) and self.kl_clip > 0.0):
                raise ValueError(
                    f"kl_clip must be a finite number greater than 0, got {self.kl_clip}: use None for no bound"
                )


COUNTS = frozenset(("steps", "nonfinite", "inversions", "estimates"))
"""In the saved state of a parameter."""


@dataclass(frozen=True)
class KFACStats:
    """Totals so far."""

    steps: int
    nonfinite: int
    """Steps skipped for a loss, gradient or direction that was not finite."""
    inversions: int
    layers: int
    """How many layers have factors."""
    kl_scale: float
    """ν of the last step: 1 where nothing was clipped."""


def check_numbers(group: dict[str, Any]) -> None:
    """Those of a param group; lr alone may be a tensor."""
    for name in ("lr", "damping", "momentum", "weight_decay"):
        if name != "lr":
            number(name, group[name])
        step_size(name, group[name])
    if group["damping"] == 0.0:
        raise ValueError("damping must be greater than 0, got 0: a factor of fewer examples than its width is singular")
    if group["momentum"] >= 1.0:
        raise ValueError(f"momentum must be less than 1, got {group['momentum']}")


def check_model(model: nn.Module, blocks: Sequence[Block], others: str) -> list[Tensor]:
    """Raise if K-FAC cannot train this model; returns the trainable parameters that are in none of the layers."""
    owners: dict[int, str] = {}
    for block in blocks:
        for p in block.params:
            if id(p) in owners:
                raise ValueError(
                    f"layers {owners[id(p)]!r} and {block.name!r} share a parameter, and K-FAC has one pair of factors "
                    "for each layer: untie them"
                )
            owners[id(p)] = block.name
    rest = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in owners}
    if rest and others == "refuse":
        raise ValueError(
            f"parameter {next(iter(rest))!r} (one of {len(rest)}) is in no nn.Linear or nn.Embedding: use others='sgd' "
            "for plain momentum, or layers made of nn.Linear, such as LinearRNN in place of nn.RNN"
        )
    trainable(model.parameters())  # there must be one
    everything = [*(p for block in blocks for p in block.params), *rest.values()]
    if any(p.is_complex() for p in everything):
        raise ValueError("the model has complex parameters, and K-FAC needs real ones: use another optimizer")
    devices = sorted({str(p.device) for p in everything})
    if len(devices) > 1:
        raise ValueError(
            f"the parameters lie on several devices ({', '.join(devices)}), and one bound on the step spans them all: "
            "move the model to one device"
        )
    return list(rest.values())


def check_state(blocks: Sequence[Block], params: Sequence[Tensor], entries: Mapping[int, dict[str, Any]]) -> None:
    """Raise if a saved state, by the index of the parameter, does not fit these layers."""
    index, kept_as = 0, "the model and max_dimension"
    for i, entry in entries.items():
        if "momentum" in entry:
            check_tensor(i, "momentum", entry["momentum"], tuple(params[i].shape), kept_as=kept_as)
        for name in COUNTS & set(entry):
            check_number(i, name, entry[name])
            check_range(i, name, entry[name], LARGEST_WHOLE)
        if "kl_scale" in entry:
            check_tensor(i, "kl_scale", entry["kl_scale"], (), kept_as=kept_as)
    for block in blocks:
        entry = entries.get(index, {})
        together = [{"A", "G", "estimates"}, {"A_inverse", "G_inverse"}]
        if any(names & set(entry) and not names <= set(entry) for names in together):
            raise ValueError(f"the saved factors of layer {block.name!r} are not complete: corrupt state")
        for name, shape in zip(("A", "G"), block.form.factor_shapes(), strict=True):
            for kept in sorted({name, f"{name}_inverse"} & set(entry)):
                check_tensor(index, kept, entry[kept], shape, kept_as=kept_as)
        index += len(block.params)


def with_plain_counts(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """A saved state that was checked, with counts that came as tensors as Python's own."""
    return {
        key: {name: plain(v) if name in COUNTS else v for name, v in entry.items()}
        if isinstance(entry, dict)
        else entry
        for key, entry in state.items()
    }


def check_gradients(params: Sequence[Tensor]) -> None:
    for p in params:
        if p.grad is not None and p.grad.layout != torch.strided:
            raise RuntimeError(
                f"a parameter of shape {tuple(p.shape)} has a sparse gradient ({p.grad.layout}), and KFAC needs "
                "dense ones: build the layer with sparse=False"
            )


def check_seen(block: Block, fisher: str) -> None:
    """A layer without factors must have no gradient."""
    if any(p.grad is not None for p in block.params):
        remedy = (
            "run a backward pass inside sampling() first"
            if fisher == "sampled"
            else "make the optimizer before the forward pass, have the model in training mode, and call the "
            "layer rather than use its weight"
        )
        raise RuntimeError(f"layer {block.name!r} has a gradient, but no call of it was seen: {remedy}")
