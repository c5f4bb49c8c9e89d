"""What is known about an optimizer and its last cycles, as plain data: all that an explanation is made from.

A run of the laboratory stores it as JSON, so that it can be explained without the model and its data.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from adaqn.core.acceptance import FactorTest, PairedTest, RejectTest
from adaqn.core.curvature import AccumulatedFisher
from adaqn.core.outcome import Outcome
from adaqn.core.pairs import CURVATURE_TESTS, TowardsH0
from adaqn.explain.typed import checked
from adaqn.optim.events import RECENT, CycleEvent, Stats
from adaqn.optim.family import Common
from adaqn.optim.layout import Size, size_of_state
from adaqn.optim.making import flat_for
from adaqn.optim.method import Method
from adaqn.optim.removed import PLACES
from adaqn.parameters.flat import trained

if TYPE_CHECKING:
    from adaqn.optim.optimizer import QuasiNewton

OWN = "your own"
"""The name of a part that the user has written."""

FULL = ("lr", "initial_lr", "max_lr")
"""Where torch's schedulers keep the step size that they start from, or rise to."""
_GONE = ("max_dimension", "wide")
"""What records had while long sides had no basis."""


@dataclass(frozen=True)
class Settings:
    """How the optimizer was set up, in the words of its options."""

    method: str
    options: tuple[str, ...]
    """The names of all options that its constructor has."""
    lr: tuple[float, ...]
    """Of each param group, with the decay of ``decay_steps``, without the step multiplier."""
    cycle_bounds: tuple[int, int] | None
    memory_size: int
    fisher_size: int
    """0 where no gradients are kept."""
    curvature_test: str
    curvature_eps: float
    damping: float
    acceptance: str | None
    reject_factor: float | None
    """Of the factor test, also where it stands in for the paired one."""
    paired_level: float | None
    monitored: bool
    rotating: bool
    """May the monitoring set change from cycle to cycle?"""
    anchor_patience: int | None
    reject_window: int
    maximize: bool
    dtype: str
    """Of the narrowest parameters."""
    size: Size
    size_in_bfloat16: Size
    row: int
    """Bytes of one gradient that is kept."""
    growth: float = 1.0
    """How many times their usual length steps may have (D37)."""
    full_lr: tuple[float, ...] = ()
    """Of each param group before a schedule changed it; empty where that is not known."""

    @property
    def asked_lr(self) -> tuple[float, ...]:
        """What a user would change: the step size before its schedule, where that is known."""
        return self.full_lr or self.lr

    @property
    def is_scheduled_down(self) -> bool:
        """Has a schedule shortened the steps to less than half?"""
        return any(now < 0.5 * full for now, full in zip(self.lr, self.full_lr, strict=False))


@dataclass(frozen=True)
class Record:
    """The settings, the totals, and the last cycles one by one."""

    settings: Settings
    stats: Stats
    skips_in_row: int
    unstored_in_row: int
    cycles: tuple[CycleEvent, ...]

    @property
    def forgotten(self) -> bool:
        """Are fewer cycles known one by one than could be? So it is after a state was loaded."""
        return len(self.cycles) < min(self.stats.cycles, RECENT)

    def count(self, outcome: Outcome) -> int:
        """Among the last cycles."""
        return sum(cycle.outcome is outcome for cycle in self.cycles)

    def rise(self, cycle: CycleEvent) -> float | None:
        """By how much the monitored loss got worse in that cycle, relative to its size; below 0 it got better."""
        return self.change(cycle.anchor_loss, cycle.candidate_loss)

    def change(self, before: float | None, after: float | None) -> float | None:
        """From one loss to another, above 0 if that is worse."""
        if before is None or after is None or not (math.isfinite(before) and math.isfinite(after)) or before == 0.0:
            return None
        return (before - after if self.settings.maximize else after - before) / abs(before)

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite as text, for JSON has none."""
        plain: dict[str, Any] = mapped(asdict(self), lambda value: value.value if isinstance(value, Outcome) else value)
        written: dict[str, Any] = mapped(plain, as_text)
        return written

    @staticmethod
    def from_json(values: dict[str, Any]) -> Record:
        """What ``to_json`` gave; a ``ValueError`` for anything else."""
        try:
            read = mapped(values, from_text)
            settings = {name: _as_tuple(value) for name, value in read["settings"].items() if name not in _GONE}
            sizes = {name: Size(**settings[name]) for name in ("size", "size_in_bfloat16")}
            cycles = ({**cycle, "outcome": Outcome(cycle["outcome"])} for cycle in read["cycles"])
            record = Record(
                Settings(**{**settings, **sizes}),
                Stats(**read["stats"]),
                read["skips_in_row"],
                read["unstored_in_row"],
                tuple(CycleEvent(**cycle) for cycle in cycles),
            )
            return checked(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not the record of an optimizer ({type(error).__name__}: {error})") from error


def record_of(optimizer: QuasiNewton) -> Record:
    """Everything at this moment."""
    c = optimizer._counters
    return Record(settings_of(optimizer), optimizer.stats, c.skips_in_row, c.unstored_in_row, tuple(optimizer._recent))


def settings_of(optimizer: QuasiNewton) -> Settings:
    m, state = optimizer._method, optimizer._state
    params, _ = trained(optimizer.param_groups, set() if state is None else state.frozen)
    flat = state.flat if state is not None else flat_for(m, params) if params else None
    narrow = replace(m, storage=replace(m.storage, history_dtype=torch.bfloat16, fisher_dtype=torch.bfloat16))
    decay = 1.0 if state is None else state.decay
    test = m.judge.test
    factor = test.fallback if isinstance(test, PairedTest) else test
    dtypes = [p.dtype.to_real() for p in params] or [torch.float32]

    def size(method: Method) -> Size:
        if flat is None:
            return Size(0, 0, 0, 0)
        return size_of_state(flat, method, momentum=optimizer._has_momentum, **optimizer._kept_vectors)

    return Settings(
        method=type(optimizer).__name__,
        options=option_names(type(optimizer)),
        lr=tuple(float(group["lr"]) * decay for group in optimizer.param_groups),
        cycle_bounds=m.cycle_bounds,
        memory_size=m.memory_size,
        fisher_size=m.curvature.rows if isinstance(m.curvature, AccumulatedFisher) else 0,
        curvature_test=next((name for name, ours in CURVATURE_TESTS.items() if ours is m.curvature_test), OWN),
        curvature_eps=m.curvature_eps,
        damping=m.repair.share if isinstance(m.repair, TowardsH0) else 0.0,
        acceptance=test_name(test),
        reject_factor=factor.factor if isinstance(factor, FactorTest) else None,
        paired_level=test.level if isinstance(test, PairedTest) else None,
        monitored=optimizer.monitor is not None,
        rotating=hasattr(optimizer.monitor, "advance"),
        anchor_patience=m.anchor_patience or None,
        reject_window=m.judge.window,
        maximize=m.maximize,
        dtype=str(min(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch."),
        size=size(m),
        size_in_bfloat16=size(narrow),
        growth=m.judge.growth,
        full_lr=tuple(max(float(group[name]) for name in FULL if name in group) for group in optimizer.param_groups),
        row=0 if flat is None else flat.n * (m.storage.fisher_dtype or flat.dtype).itemsize,
    )


def test_name(test: RejectTest | None) -> str | None:
    if test is None:
        return None
    kinds: tuple[tuple[type, str], ...] = ((PairedTest, "paired"), (FactorTest, "factor"))
    return next((name for kind, name in kinds if isinstance(test, kind)), OWN)


def option_names(method: type) -> tuple[str, ...]:
    """Of its constructor, and by their flat names the fields of what it takes as dataclasses."""
    found = set(inspect.signature(method).parameters) - {"params", "removed"}
    if "common" in found:
        found = (found - {"common"}) | set(Common.__annotations__)
    return tuple(sorted(found | {flat for flat, (place, _) in PLACES.items() if place in found}))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: mapped(item, change) for name, item in value.items()}
    return [mapped(item, change) for item in value] if isinstance(value, list | tuple) else change(value)


def as_text(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_text(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
