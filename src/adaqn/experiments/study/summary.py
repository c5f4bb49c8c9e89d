"""What the study says: one line per method and cell, compared with tuned Adam."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel, as_it_comes
from adaqn.experiments.comparison.summary import first_reached, verdicts
from adaqn.experiments.study.driver import known_times, rows
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.rows import Row, number
from adaqn.experiments.training.config import RunConfig

YARDSTICK = "adam"


@dataclass(frozen=True)
class Line:
    """One method on one cell; ``None`` is not known yet, or never reached."""

    panel: Panel
    method: str
    label: str
    config: RunConfig
    """Of its runs, the seed apart."""
    runs: list[dict[str, Any]]
    """At the best step size, one per seed."""
    lr: float | None
    at_end: bool
    """Is that the smallest or the largest of the step sizes that were tried?"""
    seeds: int
    test: list[float]
    """At the end, one per seed, at the best step size."""
    averaged: list[float]
    """Of the averaged weights."""
    accuracy: list[float]
    untuned: list[float]
    """At the method's own default step size."""
    milliseconds: float | None
    steps_to_adam: float | None
    """Steps until the mean test loss is that of tuned Adam at its end."""
    steps: int
    unit: str
    cycles: dict[str, int] | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.test)

    @property
    def seconds_to_adam(self) -> float | None:
        if self.steps_to_adam is None or self.milliseconds is None:
            return None
        return self.steps_to_adam * self.milliseconds / 1e3


def lines(plan: Plan, folder: Path) -> dict[str, list[Line]]:
    """Cell → its finished methods, best first."""
    found: dict[str, list[Line]] = {}
    for panel in plan.panels:
        times = known_times(panel, folder)
        goal = _goal(Row(panel, as_it_comes(YARDSTICK), folder), plan.seeds)
        of_panel = [_line(row, plan.seeds, times.get(row.method), goal) for row in rows(panel, folder)]
        whole = [line for line in of_panel if line is not None]
        if whole:
            found[panel.name] = sorted(whole, key=lambda line: (line.mean, line.method))
    return found


def _goal(row: Row, seeds: int) -> float | None:
    runs = row.at(row.best_lr(), seeds)
    return statistics.fmean(number(run["end"]["test_loss"]) for run in runs) if runs else None


def _line(row: Row, seeds: int, milliseconds: float | None, goal: float | None) -> Line | None:
    lr = row.best_lr()
    runs = row.at(lr, seeds)
    if not runs:
        return None
    ends = [run["end"] for run in runs]
    return Line(
        panel=row.panel,
        method=row.method,
        label=row.variant.label,
        config=replace(row.base, lr=lr),
        runs=runs,
        lr=lr,
        at_end=row.best_is_at_end,
        seeds=len(runs),
        test=[number(end["test_loss"]) for end in ends],
        averaged=[number(end.get("average_test_loss")) for end in ends],
        accuracy=[end["test_accuracy"] for end in ends if "test_accuracy" in end],
        untuned=[number(run["end"]["test_loss"]) for run in row.at(row.default, seeds)],
        milliseconds=milliseconds,
        steps_to_adam=None if goal is None else first_reached(mean_trace(runs), goal),
        steps=runs[0]["trace"]["step"][-1],
        unit=runs[0]["unit"],
        cycles=verdicts(ends),
    )


def mean_trace(runs: list[dict[str, Any]], key: str = "test_loss") -> list[tuple[float, float]]:
    """(step, mean over the seeds) of every evaluation."""
    steps = runs[0]["trace"]["step"]
    columns = zip(*(run["trace"][key] for run in runs), strict=True)
    return [(step, statistics.fmean(map(number, values))) for step, values in zip(steps, columns, strict=True)]


def loss_text(value: float) -> str:
    """Three decimals, or two digits where that would be nothing.

    >>> loss_text(1.6789), loss_text(0.0801), loss_text(0.000096), loss_text(float("inf"))
    ('1.679', '0.080', '0.000096', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    if abs(value) >= 0.1 or value == 0.0:
        return f"{value:.3f}"
    exponent = int(f"{value:.1e}".partition("e")[2])
    return f"{value:.{1 - exponent}f}"


def mean_text(values: list[float]) -> str:
    return loss_text(statistics.fmean(values)) if values else "–"


def range_text(values: list[float]) -> str:
    return f"{loss_text(min(values))} to {loss_text(max(values))}"
