"""The ways in which a method is run on a cell: without a schedule and judged at an average, or with one.

Every method has the same budget of step sizes in each, and is judged by the better one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adaqn.experiments.comparison.panels import Variant
from adaqn.experiments.optimizers import entry
from adaqn.experiments.schema import number, positive, record
from adaqn.experiments.training.options import usual_options
from adaqn.experiments.training.whole_settings import SCHEDULES

REGIME = record({"warm_up": number(0.0, 1.0)}, {"averaging": positive})
"""What a file says of one: the share of the steps in which the step size rises, and c of an average."""


@dataclass(frozen=True)
class Regime:
    """What all methods of a cell have in common."""

    name: str
    warm_up: float
    """Share of the steps."""
    averaging: float | None = None
    """c of the growing average at which it is judged; without one it is judged at the last weights."""
    schedule: str = "constant"

    @staticmethod
    def from_json(name: str, said: dict[str, Any]) -> Regime:
        if said.get("schedule", "constant") not in SCHEDULES:
            raise ValueError(f"the schedule of {name} must be one of {', '.join(SCHEDULES)}, got {said['schedule']!r}")
        return Regime(name, **said)


@dataclass(frozen=True)
class InRegime(Variant):
    """A method in one of them."""

    regime: str = ""


def variants(methods: tuple[str, ...], regimes: tuple[Regime, ...], steps: int) -> tuple[Variant, ...]:
    """Every method in every regime that is for it. One that is schedule-free has no use for a schedule."""
    return tuple(
        _variant(method, regime, steps)
        for method in methods
        for regime in regimes
        if regime.schedule == "constant" or not entry(method).schedule_free
    )


def _variant(method: str, regime: Regime, steps: int) -> InRegime:
    """A warm-up or an average of the method's own goes before those of the regime."""
    own = usual_options(method, {})
    shown = entry(method).schedule_free or bool(own.get("averaging"))
    settings = {
        "schedule": regime.schedule,
        "warm_up": 0 if own.get("warm_up") else round(regime.warm_up * steps),
        "averaging": None if shown else regime.averaging,
    }
    return InRegime(
        f"{method}.{regime.name}", method, entry(method).label, regime=regime.name, settings=tuple(settings.items()),
        at_average=regime.averaging is not None and not entry(method).schedule_free,
    )  # fmt: skip
