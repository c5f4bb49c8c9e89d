"""Options and counters of HessianFree; every message names the value and the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.core.checks import at_least_one, choose, number
from adaqn.parameters.flat import check_one_device
from adaqn.parameters.loading import entries_by_parameter
from adaqn.parameters.saved import LARGEST_WHOLE, check_number, check_range, check_same, check_tensor, plain

PRECONDITIONERS = {name: name for name in ("fisher", "gradient", "none")}


@dataclass(frozen=True)
class HessianFreeStats:
    """Totals so far, and how the last step went."""

    steps: int = 0
    nonfinite: int = 0
    """Batches skipped because a loss or gradient was not finite."""
    rejected: int = 0
    """Steps that lowered the loss at no rate: the weights stayed as they were."""
    cg_iterations: int = 0
    evaluations: int = 0
    """Losses of trial points."""
    damping: float = 0.0
    """λ of the next step."""
    reduction_ratio: float = 0.0
    """ρ of the last step; −∞ if the model foretold no decrease."""
    rate: float = 0.0
    """What the last line search left of the step; 0 if it was rejected."""


@dataclass(frozen=True)
class HessianFreeOptions:
    """What ``HessianFree`` was given, checked."""

    damping: float
    structural_damping: float
    damping_factor: float
    warm_start: float
    min_cg_iterations: int
    max_cg_iterations: int
    cg_tolerance: float
    preconditioner: str
    batch_dim: int
    model: nn.Module | None
    maximize: bool

    def __post_init__(self) -> None:
        in_range("damping", self.damping)
        in_range("structural_damping", self.structural_damping)
        in_range("damping_factor", self.damping_factor, largest=1.0)
        in_range("warm_start", self.warm_start, largest=1.0)
        in_range("cg_tolerance", self.cg_tolerance)
        at_least_one("min_cg_iterations", self.min_cg_iterations)
        at_least_one("max_cg_iterations", self.max_cg_iterations)
        choose("preconditioner", self.preconditioner, PRECONDITIONERS)
        if self.damping_factor == 0.0:
            raise ValueError("damping_factor must be more than 0, got 0: the damping could never recover; 2/3 is usual")
        if self.min_cg_iterations > self.max_cg_iterations:
            raise ValueError(
                f"min_cg_iterations must be at most max_cg_iterations={self.max_cg_iterations}, "
                f"got {self.min_cg_iterations}"
            )
        if isinstance(self.batch_dim, bool) or not isinstance(self.batch_dim, int):
            raise TypeError(f"batch_dim must be a whole number, got {self.batch_dim!r}")
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be the module the closure calls, or None; got {type(self.model).__name__}")


def in_range(name: str, value: Any, *, largest: float = math.inf) -> None:
    number(name, value)
    if not (math.isfinite(value) and 0.0 <= float(value) <= largest):
        limit = "of at least 0" if largest == math.inf else f"from 0 to {largest:g}"
        raise ValueError(f"{name} must be a finite number {limit}, got {value}")


def check_parameters(params: Sequence[Tensor], model: nn.Module | None) -> None:
    for i, p in enumerate(params):
        if p.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"parameter {i} is of {p.dtype}, and HessianFree needs torch.float32 or torch.float64: conjugate "
                "gradients lose their conjugacy in less, and complex parameters are not supported"
            )
    check_one_device(params)
    known = set() if model is None else {id(p) for p in model.parameters()}
    strangers = [i for i, p in enumerate(params) if id(p) not in known]
    if model is not None and strangers:
        raise ValueError(
            f"parameter {strangers[0]} of the optimizer is not one of the model given to HessianFree: give it the "
            "module that is trained, or leave model out"
        )


def saved_stats(state_dict: dict[str, Any], params: Sequence[Tensor]) -> HessianFreeStats | None:
    """The counters in a saved state, none if it is of no step; raises if the state is not of these parameters."""
    names = {field.name for field in fields(HessianFreeStats)}
    entries = entries_by_parameter(state_dict)
    for i, entry in entries.items():
        if not names <= set(entry) <= names | {"direction"}:
            raise ValueError(
                f"the state of parameter {i} was saved by another method: missing {sorted(names - set(entry))}, "
                f"unknown {sorted(map(str, set(entry) - names - {'direction'}))}"
            )
        if "direction" in entry:
            check_tensor(i, "direction", entry["direction"], tuple(params[i].shape), kept_as="the model")
        for field in fields(HessianFreeStats):
            _check_stat(i, field.name, entry[field.name], is_whole=field.type == "int")
    if not entries:
        return None
    if len(entries) < len(params):
        raise ValueError(f"the saved state is of {len(entries)} of {len(params)} parameters: it is damaged")
    numbers = [{name: plain(entry[name]) for name in names} for entry in entries.values()]
    check_same(numbers, names)
    kinds = {"int": int, "float": float}
    return HessianFreeStats(**{f.name: kinds[str(f.type)](numbers[0][f.name]) for f in fields(HessianFreeStats)})


def _check_stat(index: int, name: str, saved: Any, *, is_whole: bool) -> None:
    if name == "reduction_ratio" and plain(saved) == -math.inf:
        return
    check_number(index, name, saved, signed=name == "reduction_ratio")
    if is_whole:
        check_range(index, name, saved, LARGEST_WHOLE)
