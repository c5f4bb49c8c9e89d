"""How long the study will take, before it starts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from adaqn.experiments.study.driver import rows
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.rows import Row
from adaqn.experiments.training.run import Run
from adaqn.experiments.training.timing import time_step


@dataclass(frozen=True)
class Cost:
    """What is left of one row."""

    cell: str
    method: str
    runs: int
    seconds_per_run: float

    @property
    def hours(self) -> float:
        return self.runs * self.seconds_per_run / 3600


def costs(plan: Plan, folder: Path, data_dir: Path | None) -> list[Cost]:
    """One per row that is not finished: from its own runs where there are some, else from a few real steps."""
    found = []
    for row in rows(plan, folder):
        left = row.remaining(plan.points, plan.seeds)
        if left:
            found.append(Cost(row.cell.name, row.method, left, seconds_of(row, data_dir)))
    return found


def seconds_of(row: Row, data_dir: Path | None) -> float:
    """One run of that row, its evaluations included."""
    if row.runs:
        return statistics.fmean(run["seconds"] for run in row.runs)
    run = Run(row.base, None, data_dir)
    step, evaluation = time_step(run)
    return run.total * step + (2 + run.total // run.every) * evaluation
