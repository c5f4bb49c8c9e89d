"""The options of a quasi-Newton optimizer, checked once; every message names the value and the limit."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from adaqn.core.acceptance import Acceptance, FactorTest, PairedTest, RelativeTest
from adaqn.core.checks import at_least_one, whole
from adaqn.core.curvature import AccumulatedFisher, Curvature
from adaqn.core.cycle import START
from adaqn.core.direction import Direction, gram, two_loop
from adaqn.core.momentum import Momentum
from adaqn.core.pairs import CURVATURE_TESTS, CurvatureTest, Repair, TowardsH0, absolute
from adaqn.core.scaling import Adagrad, Scaling
from adaqn.core.scaling_names import SCALINGS, make_scaling
from adaqn.optim.distributed import check_group as check_processes
from adaqn.optim.events import CycleCallback
from adaqn.optim.memory import Precision

T = TypeVar("T")
DIRECTIONS: dict[str, Direction] = {"gram": gram, "two_loop": two_loop}
HISTORY_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_OF_ALL = {
    "cycle_length", "memory_size", "fisher_size", "monitor", "scaling", "maximize", "momentum", "damping", "preset",
    "process_group", "shard_history",
}  # fmt: skip


@dataclass
class Options:
    """The parts of a method and its numbers."""

    monitor: Callable[[], Any] | None = None
    cycle_length: int = 5
    cycle_bounds: tuple[int, int] | None = None
    """Where cycles adapt, their shortest and longest length; ``cycle_length`` is then the first."""
    memory_size: int = 10
    curvature_eps: float = 1e-4
    scaling: Scaling = field(default_factory=Adagrad)
    curvature: Curvature = field(default_factory=AccumulatedFisher)
    curvature_test: CurvatureTest = absolute
    acceptance: Acceptance | None = field(default_factory=FactorTest)
    direction: Direction = gram
    momentum: Momentum | None = None
    reset_momentum: bool = True
    """On rejection."""
    repair: Repair | None = None
    pairs_from_start: bool = False
    """Is the point before the first step an anchor like any other? Not where anchors are averages (D1)."""
    decay_steps: float | None = None
    """Multiply the step size by τ/(τ + steps), with this τ."""
    guarded: bool = False
    """Look at every direction before stepping along it; one that is not finite empties the memory instead."""
    anchor_patience: int | None = 20
    reject_patience: int | None = 3
    reject_window: int = 0
    """Cycles within which a second rejection halves the steps (D15); 0 leaves that to ``reject_patience`` (D11)."""
    reset_scaling: bool = False
    on_nonfinite: str = "skip"
    maximize: bool = False
    precision: Precision = field(default_factory=Precision)
    on_cycle: tuple[CycleCallback, ...] = ()
    process_group: Any = None
    """Which processes work on the parameters; ``None`` all, where there are several, ``"none"`` this one alone."""
    shard_history: bool = False

    def __post_init__(self) -> None:
        at_least_one("cycle_length", self.cycle_length)
        at_least_one("memory_size", self.memory_size)
        whole("reject_window", self.reject_window, 0)
        for name in ("anchor_patience", "reject_patience"):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        if not (math.isfinite(self.curvature_eps) and self.curvature_eps >= 0.0):
            raise ValueError(f"curvature_eps must be a finite number of at least 0, got {self.curvature_eps}")
        if self.decay_steps is not None and not (math.isfinite(self.decay_steps) and self.decay_steps > 0.0):
            raise ValueError(f"decay_steps must be a positive finite number, or None; got {self.decay_steps}")
        check_processes(self.process_group)
        choose("on_nonfinite", self.on_nonfinite, {"skip": "skip", "raise": "raise"})
        if self.monitor is not None and not callable(self.monitor):
            raise TypeError(
                f"monitor must be a function without arguments, such as Monitor(model, loss_fn, batch); "
                f"got {type(self.monitor).__name__}"
            )
        for name in ("curvature_test", "acceptance", "direction"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a name or a function, got {getattr(self, name)!r}")
        for name in ("history_dtype", "fisher_dtype"):
            dtype = getattr(self.precision, name)
            if dtype is not None and dtype not in HISTORY_DTYPES:
                raise ValueError(f"{name} must be torch.float32, torch.float64 or torch.bfloat16, got {dtype}")


def check_group(group: dict[str, Any]) -> None:
    """Lr and weight_decay of a param group; other options are for all parameters at once."""
    for name in ("lr", "weight_decay"):
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"{name} must be a single number, got a tensor of shape {tuple(value.shape)}")
        if not isinstance(value, Tensor | numbers.Real):
            raise TypeError(f"{name} must be a number, got {value!r}")
        if not (math.isfinite(float(value)) and float(value) >= 0.0):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    unknown = _OF_ALL & set(group)
    if unknown:
        raise ValueError(
            f"{sorted(unknown)} in a param group: one quasi-Newton matrix spans all parameters, so give it to "
            "the optimizer; groups may have their own lr and weight_decay"
        )


def make_acceptance(acceptance: str | Acceptance, factor: float, level: float = 3.0) -> Acceptance | None:
    """``"factor"`` and its alias ``"relative"`` (D12), ``"paired"``, ``"auto"``, ``"none"``, or a test of one's own."""
    if not isinstance(acceptance, str):
        return acceptance
    tests: dict[str, Callable[[], Acceptance | None]] = {
        "factor": lambda: FactorTest(factor),
        "relative": lambda: RelativeTest(factor - 1.0),
        "paired": lambda: PairedTest(level, FactorTest(factor)),
        "auto": lambda: PairedTest(level, FactorTest(factor), where_possible=True),
        "none": lambda: None,
    }
    return choose("acceptance", acceptance, tests)()


def make_curvature(curvature: str | Curvature, size: int, batch_size: int | None) -> Curvature:
    at_least_one("fisher_size", size)
    if batch_size is not None:
        at_least_one("fisher_batch_size", batch_size)
    if isinstance(curvature, Curvature):
        return copy.copy(curvature)  # its own place in the batches, and its own buffers
    return choose("curvature", curvature, {"accumulated_fisher": AccumulatedFisher(size, batch_size or 1)})


def make_curvature_test(test: str | CurvatureTest) -> CurvatureTest:
    return choose("curvature_test", test, CURVATURE_TESTS) if isinstance(test, str) else test


def make_direction(direction: str | Direction) -> Direction:
    return choose("direction", direction, DIRECTIONS) if isinstance(direction, str) else direction


def make_cycle(length: int | str, shortest: int, longest: int) -> tuple[int, tuple[int, int] | None]:
    """(The first length, the bounds between which it adapts or ``None`` if it is fixed)."""
    at_least_one("min_cycle_length", shortest)
    at_least_one("max_cycle_length", longest)
    if shortest > longest:
        raise ValueError(f"min_cycle_length={shortest} exceeds max_cycle_length={longest}: exchange the two")
    if isinstance(length, str):
        choose("cycle_length", length, {"auto": "auto"})
        return min(max(START, shortest), longest), (shortest, longest)
    at_least_one("cycle_length", length)
    return length, None


def make_momentum(beta: float, *, nesterov: bool = False) -> Momentum | None:
    """None for 0: no buffer, and the same numbers as without."""
    if isinstance(beta, bool) or not isinstance(beta, numbers.Real):
        raise TypeError(f"momentum must be a number, got {beta!r}")
    if not isinstance(nesterov, bool):
        raise TypeError(f"nesterov must be True or False, got {nesterov!r}")
    return Momentum(float(beta), nesterov=nesterov) if beta != 0.0 else None


def make_damping(share: float, scaling: Scaling, *, asked: bool) -> TowardsH0 | None:
    """None for 0. What a preset says is left out where H0 has no inverse; asked for, that is an error."""
    if isinstance(share, bool) or not isinstance(share, numbers.Real):
        raise TypeError(f"damping must be a number, got {share!r}")
    if share == 0.0:
        return None
    if not scaling.has_inverse():
        if asked:
            raise ValueError(
                f"damping={share} needs H0⁻¹, and {type(scaling).__name__} has an apply() without its own "
                "apply_inverse(): write that too, or give damping=0"
            )
        return None
    return TowardsH0(float(share))


def make_h0(scaling: str | Scaling, eps: float | None) -> Scaling:
    if isinstance(scaling, str):
        return make_scaling(scaling, eps)
    if eps is not None:
        raise ValueError(f"scaling_eps={eps} was given beside a scaling of your own: set it there")
    if not isinstance(scaling, Scaling):
        raise TypeError(f"scaling must be one of {sorted(SCALINGS)} or a Scaling object, got {scaling!r}")
    for name in ("vector_names", "number_names"):
        if isinstance(getattr(scaling, name), str):
            raise TypeError(f"{name} of {type(scaling).__name__} must be a tuple of names, got a string: add a comma")
    return copy.deepcopy(scaling)  # it will hold this optimizer's vectors; another may be given the same object


def choose(name: str, value: str, choices: dict[str, T]) -> T:
    if value not in choices:
        raise ValueError(f"{name} must be one of {sorted(choices)}, got {value!r}")
    return choices[value]
