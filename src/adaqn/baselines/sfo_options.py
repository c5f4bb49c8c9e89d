"""Options and counters of SFO; every message names the value and the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaqn.core.checks import at_least_one, choose, number, step_size
from adaqn.parameters.flat import check_one_device

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@dataclass(frozen=True)
class SFOOptions:
    """The numbers of the method, checked once."""

    batches: int
    history_size: int
    initial_curvature: float
    initial_active: int
    max_condition: float
    max_gradient_noise: float
    max_step_ratio: float
    min_step: float
    min_kept: float
    order: str
    maximize: bool

    def __post_init__(self) -> None:
        for name in ("batches", "history_size", "initial_active"):
            at_least_one(name, getattr(self, name))
        for name in (
            "initial_curvature",
            "max_condition",
            "max_gradient_noise",
            "max_step_ratio",
            "min_step",
            "min_kept",
        ):
            limit = {"max_condition": 1.0, "max_step_ratio": 1.0}.get(name, 0.0)
            value = number(name, getattr(self, name))
            zero_is_fine = name in ("max_gradient_noise", "min_step", "min_kept")
            if not (math.isfinite(value) and (value > limit or (zero_is_fine and value == limit))):
                bound = "of at least" if zero_is_fine else "above"
                raise ValueError(f"{name} must be a finite number {bound} {limit:g}, got {value}")
        if self.min_kept > 1.0:
            raise ValueError(f"min_kept must be at most 1, the whole length of a step, got {self.min_kept}")
        choose("order", self.order, {"distance": True, "cyclic": True})


@dataclass(frozen=True)
class SFOStats:
    """Totals since the optimizer was made, and where it stands."""

    steps: int
    evaluations: int
    """Calls of closures that gave finite values; above ``steps`` by those that a rejection took."""
    rejected: int
    """Bad updates: the next step was shortened, and mostly the parameters went back."""
    nonfinite: int
    """Evaluations that were not finite, and so made no step."""
    active: int
    """Minibatches that take part by now."""
    pairs: int
    """Differences of gradients in memory, of all minibatches."""
    dimensions: int
    """Of the subspace."""
    collapses: int
    """Of the subspace, when it had grown to its limit."""
    step_scale: float
    """Below 1 after rejections; it grows back in about one pass."""


def check_parameters(params: Sequence[Tensor]) -> None:
    check_one_device(params)
    for p in params:
        if p.dtype not in DTYPES:
            raise ValueError(
                f"SFO lives on small differences of gradients, which {p.dtype} rounds away: keep the "
                "parameters in float32 or float64 (autocast may still do the layers in less)"
            )


def common_lr(groups: Sequence[dict[str, Any]]) -> float:
    """The one step size of all groups."""
    rates = sorted({float(step_size("lr", group["lr"])) for group in groups})
    if len(rates) > 1:
        raise ValueError(f"SFO makes one Newton step for all parameters: give all groups one finite lr, got {rates}")
    return rates[0]
