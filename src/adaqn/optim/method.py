"""A method as a choice of parts: what the loop of :mod:`adaqn.optim.optimizer` is made of, checked once.

Every message names the value and the limit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from adaqn.core.acceptance import FactorTest, PairedTest, RejectTest, RelativeTest
from adaqn.core.checks import at_least_one, at_least_zero, choose, flag, number, positive_number, whole
from adaqn.core.curvature import AccumulatedFisher, Curvature, NoCurvature
from adaqn.core.cycle import START
from adaqn.core.direction import Direction, gram, two_loop
from adaqn.core.pairs import CURVATURE_TESTS, CurvatureTest, Repair, TowardsH0, absolute
from adaqn.core.scaling import Adagrad, Scaling
from adaqn.core.scaling_names import SCALINGS, make_scaling
from adaqn.optim.events import CycleCallback
from adaqn.optim.judge import Judge
from adaqn.optim.monitored import MonitoredGradient
from adaqn.optim.settings import PairOptions, RejectOptions, StorageOptions, given
from adaqn.parameters.processes import check_process_group

DIRECTIONS: dict[str, Direction] = {"gram": gram, "two_loop": two_loop}
HISTORY_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
AUTO = (2, 20)
"""The bounds of ``cycle_length="auto"``."""


class Parts(NamedTuple):
    """The parts that learn: they live on the vectors of one state."""

    scaling: Scaling
    curvature: Curvature


@dataclass(frozen=True)
class Method:
    """The parts of a method, as yet without vectors, and its numbers."""

    judge: Judge
    cycle_length: int = 5
    cycle_bounds: tuple[int, int] | None = None
    """Where cycles adapt, their shortest and longest length; ``cycle_length`` is then the first."""
    memory_size: int = 10
    """Pairs in memory; 0 is H0 alone, with everything else as it is."""
    curvature_eps: float = 1e-4
    scaling: Scaling = field(default_factory=Adagrad)
    curvature: Curvature = field(default_factory=AccumulatedFisher)
    curvature_test: CurvatureTest = absolute
    scale: str = "h0"
    """``"h0"``: pairs on top of H0. ``"stored"`` and ``"current"``: of lr·H0 (D34)."""
    direction: Direction = gram
    nesterov: bool = False
    repair: Repair | None = None
    pair_every_step: bool = False
    """Is every step a cycle, with the point before it as anchor? Otherwise anchors are averages (D1)."""
    decay_steps: float | None = None
    """Multiply the step size by τ/(τ + steps), with this τ."""
    guarded: bool = False
    """Look at every direction before stepping along it; one that is not finite empties the memory instead."""
    warm_up: int = 0
    """The first so many steps rise to the step size."""
    averaging: float = 0.0
    """c of the growing average (D33); 0 keeps the last accepted one alone."""
    anchor_patience: int = 20
    reset_momentum: bool = True
    """On rejection; below the same for H0."""
    reset_scaling: bool = False
    on_nonfinite: str = "skip"
    maximize: bool = False
    storage: StorageOptions = field(default_factory=StorageOptions)
    on_cycle: tuple[CycleCallback, ...] = ()
    process_group: Any = None
    """Which processes work on the parameters; ``None`` all, where there are several, ``"none"`` this one alone."""

    def __post_init__(self) -> None:
        at_least_one("cycle_length", self.cycle_length)
        whole("memory_size", self.memory_size, 0)
        if self.pair_every_step and self.cycle_length != 1:
            raise ValueError(f"a pair from every step needs cycle_length=1, got {self.cycle_length}")
        for name, value in (
            ("window", self.judge.window),
            ("patience", self.judge.patience),
            ("anchor_patience", self.anchor_patience),
            ("warm_up", self.warm_up),
        ):
            whole(name, value, 0)
        at_least_zero("eps of the curvature test", self.curvature_eps)
        at_least_zero("averaging", self.averaging)
        choose("scale", self.scale, {name: name for name in ("h0", "stored", "current")})
        if self.decay_steps is not None:
            positive_number("decay_steps", self.decay_steps)
        check_process_group(self.process_group)
        choose("on_nonfinite", self.on_nonfinite, {"skip": "skip", "raise": "raise"})
        for name, part in (
            ("the curvature test", self.curvature_test),
            ("reject", self.judge.test),
            ("direction", self.direction),
        ):
            if not callable(part) and (part is not None or name != "reject"):
                raise TypeError(f"{name} must be a name or a function, got {part!r}")
        if not isinstance(self.storage, StorageOptions):
            raise TypeError(f"storage must be an adaqn.StorageOptions, got {self.storage!r}")
        for name in ("reset_momentum", "reset_scaling", "maximize", "nesterov"):
            flag(name, getattr(self, name))
        for name in ("master_weights", "shard_history"):
            flag(name, getattr(self.storage, name))
        if self.storage.fisher_device is not None:
            check_device("fisher_device", self.storage.fisher_device)
        for name in ("history_dtype", "fisher_dtype"):
            dtype = getattr(self.storage, name)
            if dtype is not None and dtype not in HISTORY_DTYPES:
                raise ValueError(f"{name} must be torch.float32, torch.float64 or torch.bfloat16, got {dtype}")

    def parts(self) -> Parts:
        """Parts of their own for one state; the curvature shares its model and its batches with the others."""
        return Parts(copy.deepcopy(self.scaling), copy.copy(self.curvature))


def check_device(name: str, device: Any) -> None:
    try:
        if isinstance(device, bool) or not isinstance(device, str | torch.device):
            raise RuntimeError("not a name of one")
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{name} must be a device such as 'cpu', got {device!r} ({error})") from error


def make_judge(reject: RejectOptions) -> Judge:
    """From complete options: ``"relative"`` is an alias of ``"factor"`` (D12)."""
    factor, level, test = number("factor", given(reject.factor)), number("level", given(reject.level)), reject.test
    if str(test) == "auto":
        raise ValueError("reject='auto' is now reject='paired'")
    if isinstance(test, str):
        tests: dict[str, Callable[[], RejectTest | None]] = {
            "factor": lambda: FactorTest(factor),
            "relative": lambda: RelativeTest(factor - 1.0),
            "paired": lambda: PairedTest(level, FactorTest(factor)),
            "none": lambda: None,
        }
        test = choose("reject", test, tests)()
    first = whole("first_look", given(reject.first_look), 0)
    if first == 1:
        raise ValueError("first_look must be 0 (always all examples) or at least 2, got 1: one has no standard error")
    growth = number("growth", given(reject.growth))
    if not 1.0 <= growth < math.inf:
        raise ValueError(f"growth must be a finite number of at least 1, got {growth}: 1 turns it off")
    return Judge(test, given(reject.window), given(reject.patience), first, growth if test is not None else 1.0)


def make_curvature(pairs: PairOptions) -> Curvature:
    if pairs.memory_size == 0:
        return NoCurvature()
    if isinstance(pairs.curvature, Curvature):
        return copy.copy(pairs.curvature)  # its own place in the batches, and its own buffers
    if not isinstance(pairs.curvature, str):
        raise TypeError(f"curvature must be a name or a Curvature, got {pairs.curvature!r}")
    return choose(
        "curvature",
        pairs.curvature,
        {
            "accumulated_fisher": AccumulatedFisher(given(pairs.fisher_size)),
            "monitored": MonitoredGradient(),
        },
    )


def make_curvature_test(test: Any) -> CurvatureTest:
    made: CurvatureTest = choose("the curvature test", test, CURVATURE_TESTS) if isinstance(test, str) else test
    return made


def make_direction(direction: Any) -> Direction:
    made: Direction = choose("direction", direction, DIRECTIONS) if isinstance(direction, str) else direction
    return made


def make_cycle(length: int | str | tuple[int, int]) -> tuple[int, tuple[int, int] | None]:
    """(The first length, the bounds between which it adapts or ``None`` if it is fixed).

    >>> make_cycle(7), make_cycle("auto"), make_cycle((6, 30))
    ((7, None), (5, (2, 20)), (6, (6, 30)))
    """
    if isinstance(length, str):
        length = choose("cycle_length", length, {"auto": AUTO})
    if not isinstance(length, tuple | list):
        return at_least_one("cycle_length", length), None
    if len(length) != 2:
        raise ValueError(f"cycle_length must be a number, 'auto' or (shortest, longest), got {length!r}")
    shortest, longest = (at_least_one("cycle_length", bound) for bound in length)
    if shortest > longest:
        raise ValueError(f"cycle_length={(shortest, longest)}: the shortest exceeds the longest, exchange the two")
    return min(max(START, shortest), longest), (shortest, longest)


def make_damping(share: float, scaling: Scaling, *, asked: bool) -> TowardsH0 | None:
    """None for 0. What a preset says is left out where H0 has no inverse; asked for, that is an error."""
    number("damping", share)
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


def make_h0(scaling: str | Scaling) -> Scaling:
    if isinstance(scaling, str):
        return make_scaling(scaling)
    if not isinstance(scaling, Scaling):
        raise TypeError(f"scaling must be one of {sorted(SCALINGS)} or a Scaling object, got {scaling!r}")
    for name in ("vector_names", "number_names"):
        if isinstance(getattr(scaling, name), str):
            raise TypeError(f"{name} of {type(scaling).__name__} must be a tuple of names, got a string: add a comma")
    return copy.deepcopy(scaling)  # another optimizer may be given the same object
