"""What the study says: one line per method, regime and cell, compared with tuned AdamW."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel
from adaqn.experiments.comparison.summary import first_reached, verdicts
from adaqn.experiments.means import mean
from adaqn.experiments.study.driver import known_times, rows
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.rows import Row, number
from adaqn.experiments.training.config import RunConfig

YARDSTICK = "adamw"


@dataclass(frozen=True)
class Line:
    """One method on one cell in one regime; ``None`` is not known yet, or never reached.

    All its losses are what the regime is judged by: at the average, or at the weights.
    """

    panel: Panel
    method: str
    regime: str
    label: str
    prefix: str
    """Of its losses in runs and traces."""
    config: RunConfig
    """Of its runs, the seed apart."""
    runs: list[dict[str, Any]]
    """At the best step size, one per seed."""
    lr: float | None
    at_end: bool
    """Is that the smallest or the largest of the step sizes that were tried?"""
    seeds: int
    valid: list[float]
    """At the end, one per seed, at the best step size: regimes are compared by it."""
    test: list[float]
    accuracy: list[float]
    untuned: list[float]
    """Test losses at the method's own default step size."""
    untuned_runs: list[dict[str, Any]]
    milliseconds: float | None
    steps: int
    unit: str
    cycles: dict[str, int] | None
    goal: float | None = None
    """The final loss of tuned AdamW."""

    @property
    def mean(self) -> float:
        return mean(self.test)

    @property
    def steps_to_goal(self) -> float | None:
        """Steps until the mean test loss is that of tuned AdamW at its end."""
        return None if self.goal is None else first_reached(self.trace(), self.goal)

    @property
    def seconds_to_goal(self) -> float | None:
        return seconds(self.steps_to_goal, self.milliseconds)

    @property
    def untuned_seconds_to_goal(self) -> float | None:
        """The same at the default step size."""
        if self.goal is None or not self.untuned_runs:
            return None
        return seconds(first_reached(mean_trace(self.untuned_runs, self.key), self.goal), self.milliseconds)

    @property
    def key(self) -> str:
        return f"{self.prefix}test_loss"

    def trace(self) -> list[tuple[float, float]]:
        """(step, mean over the seeds) of every evaluation."""
        return mean_trace(self.runs, self.key)


def seconds(steps: float | None, milliseconds: float | None) -> float | None:
    return None if steps is None or milliseconds is None else steps * milliseconds / 1e3


Found = dict[str, list[list[Line]]]
"""Cell → its methods, best first; of each its finished regimes, the better one on validation first."""


def lines(plan: Plan, folder: Path) -> Found:
    """What is finished."""
    found: Found = {}
    for panel in plan.panels:
        of_panel = _methods(panel, folder, plan.seeds)
        goal = next((regimes[0].mean for regimes in of_panel if regimes[0].method == YARDSTICK), None)
        if of_panel:
            found[panel.name] = [[replace(line, goal=goal) for line in regimes] for regimes in of_panel]
    return found


def _methods(panel: Panel, folder: Path, seeds: int) -> list[list[Line]]:
    times = known_times(panel, folder)
    by_method: dict[str, list[Line]] = {}
    for row in rows(panel, folder):
        line = _line(row, seeds, times.get(row.method))
        if line is not None:
            by_method.setdefault(row.method, []).append(line)
    ranked = [sorted(regimes, key=lambda line: mean(line.valid)) for regimes in by_method.values()]
    return sorted(ranked, key=lambda regimes: (regimes[0].mean, regimes[0].method))


def _line(row: Row, seeds: int, milliseconds: float | None) -> Line | None:
    lr = row.best_lr()
    runs = row.at(lr, seeds)
    if not runs:
        return None
    ends, accuracy, untuned = [run["end"] for run in runs], f"{row.prefix}test_accuracy", row.at(row.default, seeds)
    return Line(
        panel=row.panel,
        method=row.method,
        regime=row.regime,
        label=row.variant.label,
        prefix=row.prefix,
        config=replace(row.base, lr=lr),
        runs=runs,
        lr=lr,
        at_end=row.best_is_at_end,
        seeds=len(runs),
        valid=[row.end(run, "valid_loss") for run in runs],
        test=[row.end(run, "test_loss") for run in runs],
        accuracy=[end[accuracy] for end in ends if end.get(accuracy) is not None],
        untuned=[row.end(run, "test_loss") for run in untuned],
        untuned_runs=untuned,
        milliseconds=milliseconds,
        steps=runs[0]["trace"]["step"][-1],
        unit=runs[0]["unit"],
        cycles=verdicts(ends),
    )


def best_lines(found: Found) -> dict[str, list[Line]]:
    """Every method in its better regime."""
    return {name: [regimes[0] for regimes in methods] for name, methods in found.items()}


def mean_trace(runs: list[dict[str, Any]], key: str = "test_loss") -> list[tuple[float, float]]:
    """(step, mean over the seeds) of every evaluation."""
    steps = runs[0]["trace"]["step"]
    columns = zip(*(run["trace"][key] for run in runs), strict=True)
    return [(step, mean(map(number, values))) for step, values in zip(steps, columns, strict=True)]


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
    return loss_text(mean(values)) if values else "–"


def range_text(values: list[float]) -> str:
    return f"{loss_text(min(values))} to {loss_text(max(values))}"
