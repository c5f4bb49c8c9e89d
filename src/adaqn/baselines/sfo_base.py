"""What surrounds the algorithm of SFO: its options, its parameters and memory, saving, loading and counting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaqn.baselines.sfo_memory import Memory, dimensions, planned_bytes
from adaqn.baselines.sfo_model import SumModel
from adaqn.core.checks import at_least_one, choose
from adaqn.optim.checkpoint import around_torchs_loading, saved_entries
from adaqn.parameters.flat import FlatParameters, check_one_device, trainable

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
            value = getattr(self, name)
            if not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, got {value!r}")
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


class SumOptimizer(Optimizer):
    """An optimizer that knows the minibatches apart, with the memory of SFO."""

    def __init__(self, params: Any, options: SFOOptions, *, lr: float | Tensor) -> None:
        self.options = options
        self._memory: Memory | None = None
        super().__init__(params, {"lr": lr})
        self._trainable()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups of one optimizer share their model, and so their lr; none can join after the first step."""
        if self._memory is not None:
            raise RuntimeError("SFO cannot take in parameters after its first step: build a new one with all of them")
        lr = {**self.defaults, **param_group}["lr"]
        if not (isinstance(lr, int | float | Tensor) and math.isfinite(lr) and lr >= 0.0):
            raise ValueError(f"lr must be a finite number of at least 0, got {lr!r}")
        super().add_param_group(param_group)
        try:
            check_one_device(self._parameters())
            for p in self._parameters():
                if p.dtype not in DTYPES:
                    raise ValueError(
                        f"SFO lives on small differences of gradients, which {p.dtype} rounds away: keep the "
                        "parameters in float32 or float64 (autocast may still do the layers in less)"
                    )
        except ValueError:
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ what a person reads

    @property
    def stats(self) -> SFOStats:
        """Totals so far."""
        if self._memory is None:
            return SFOStats(0, 0, 0, 0, min(self.options.initial_active, self.options.batches), 0, 0, 0, 1.0)
        m, c = self._memory, self._memory.numbers
        return SFOStats(
            c.steps, c.calls, c.rejected, c.nonfinite, int(m.active.sum()), int(m.model.pairs.sum()),
            m.subspace.size, c.collapses, c.step_scale,
        )  # fmt: skip

    def state_size(self) -> int:
        """Bytes kept between steps, known before the first: 3N + 4 vectors, and about 135 N² numbers of float64."""
        flat = self._memory.flat if self._memory else FlatParameters(self._trainable())
        return planned_bytes(flat, self.options.batches, self.options.history_size)

    # ------------------------------------------------------------------ parameters and memory

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _trainable(self) -> list[Tensor]:
        return trainable(self._parameters())

    def _lr(self) -> float:
        rates = sorted({float(group["lr"]) for group in self.param_groups})
        if len(rates) > 1 or not math.isfinite(rates[0]):
            raise ValueError(
                f"SFO makes one Newton step for all parameters: give all groups one finite lr, got {rates}"
            )
        return rates[0]

    def _new_memory(self, flat: FlatParameters) -> Memory:
        o = self.options
        K, eps = dimensions(o.batches, flat.n), torch.finfo(flat.dtype).eps
        model = SumModel(o.batches, K, o.history_size, float(o.initial_curvature), float(o.max_condition), eps)
        return Memory(flat, model, o.initial_active)

    def _current_memory(self) -> Memory:
        params = self._trainable()
        if self._memory is None:
            self._memory = self._new_memory(FlatParameters(params))
            self._show_state()
        elif not self._memory.flat.covers(params):
            raise RuntimeError(
                f"the trainable parameters changed (from {len(self._memory.flat.params)} tensors to {len(params)}, "
                "or their shape, dtype or device): the models of SFO do not fit them, so build a new one"
            )
        return self._memory

    # ------------------------------------------------------------------ saving and loading

    def _show_state(self) -> None:
        self.state.clear()
        if self._memory is not None:
            self.state.update(zip(self._memory.flat.params, self._memory.per_parameter(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers by parameter; may be saved and loaded at any step."""
        self._show_state()
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if it does not fit, one error and nothing is changed."""
        taken: list[Memory] = []

        def take(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            everything = self._parameters()
            entries = saved_entries(saved, len(everything))
            if entries:
                memory = self._new_memory(FlatParameters([everything[i] for i in entries]))
                memory.check(list(entries.values()))
                memory.restore(list(entries.values()))
                taken.append(memory)
            return {**saved, "state": {}}  # torch would cast float64 and whole numbers to the parameters' dtype

        def place(_: Optimizer) -> None:
            self._memory = taken[0] if taken else None
            self._show_state()

        with around_torchs_loading(self, take, place):
            super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds.
        return {**super().__getstate__(), "options": self.options, "_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_memory" in state:  # a copy, not the loading of a state_dict
            self._show_state()
