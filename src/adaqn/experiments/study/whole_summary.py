"""What a study of whole batches says: losses and errors after equal evaluations, and after equal seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel
from adaqn.experiments.optimizers import entry
from adaqn.experiments.study.driver import known_times, rows
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.rows import ERRORS, Row, number
from adaqn.experiments.training.config import RunConfig

YARDSTICK = "torch-lbfgs"
"""Its seconds are what the others get too."""


@dataclass(frozen=True)
class WholeLine:
    """One method on one cell, one number per seed."""

    panel: Panel
    method: str
    label: str
    config: RunConfig
    lr: float | None
    """Of those that were tuned; ``None`` for line searches."""
    at_end: bool
    """Is that the smallest or the largest of the step sizes that were tried?"""
    runs: list[dict[str, Any]]
    steps: int
    loss: list[float]
    error: list[float]
    milliseconds: float | None
    """Of an evaluation, with all that the method does around it."""
    share: float | None
    """Of its evaluations that fit into the yardstick's seconds; more than 1 where it is faster."""
    loss_in_time: list[float]
    error_in_time: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.loss)


def whole_lines(plan: Plan, folder: Path) -> dict[str, list[WholeLine]]:
    """Cell → its finished methods, best first."""
    found = {}
    for panel in plan.panels:
        times = known_times(panel, folder)
        of_panel = [_line(row, plan.seeds, times) for row in rows(panel, folder)]
        whole = [line for line in of_panel if line is not None]
        if whole:
            found[panel.name] = sorted(whole, key=lambda line: (line.median, line.method))
    return found


def _line(row: Row, seeds: int, times: dict[str, float]) -> WholeLine | None:
    lr = row.best_lr()
    runs = row.at(lr, seeds)
    if not runs:
        return None
    milliseconds, yardstick = times.get(row.method), times.get(YARDSTICK)
    share = yardstick / milliseconds if milliseconds and yardstick else None
    searches, steps = entry(row.method).whole, runs[0]["trace"]["step"][-1]
    reached = steps if share is None else math.floor(share * steps)
    return WholeLine(
        panel=row.panel,
        method=row.method,
        label=row.variant.label,
        config=replace(row.base, lr=lr),
        lr=None if searches else lr,
        at_end=not searches and row.best_is_at_end,
        runs=runs,
        steps=steps,
        loss=[number(run["end"]["test_loss"]) for run in runs],
        error=[number(run["end"].get(ERRORS)) for run in runs],
        milliseconds=milliseconds,
        share=share,
        loss_in_time=[] if share is None else [at(run, "test_loss", reached) for run in runs],
        error_in_time=[] if share is None else [at(run, ERRORS, reached) for run in runs],
    )


def at(run: dict[str, Any], name: str, step: int) -> float:
    """The last of a trace that was measured by then.

    >>> at({"trace": {"step": [0, 10, 20], "test_loss": [3.0, 2.0, 1.0]}}, "test_loss", 19)
    2.0
    """
    trace = run["trace"]
    known = [value for when, value in zip(trace["step"], trace[name], strict=True) if when <= step]
    return number(known[-1])


def scientific(value: float) -> str:
    """Two digits and a power of ten.

    >>> scientific(0.000123), scientific(float("inf"))
    ('1.2e-4', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def median_text(values: Sequence[float]) -> str:
    return scientific(statistics.median(values)) if values else "–"


def span_text(values: Sequence[float]) -> str:
    return f"{scientific(min(values))} to {scientific(max(values))}" if values else "–"
