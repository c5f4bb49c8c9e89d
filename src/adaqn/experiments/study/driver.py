"""Run what is missing, round by round: every round knows the results of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from adaqn.experiments.study.plan import Cell, Plan
from adaqn.experiments.study.rows import Row
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import RunListener, run_all

Bars = Callable[[str, int], AbstractContextManager[RunListener]]
"""Makes the progress bar of a round: (what it is, how many runs)."""


def rows(plan: Plan, folder: Path) -> list[Row]:
    """One per cell and method, with what is known of each."""
    return [Row(cell, method, folder) for cell in plan.cells for method in cell.methods]


def run_study(plan: Plan, folder: Path, out: Path, workers: int, data_dir: Path | None, bars: Bars) -> Iterator[Cell]:
    """Cell by cell; yields each when all its rows are finished. Files are written after every round."""
    for cell in plan.cells:
        of_cell = [Row(cell, method, folder) for method in cell.methods]
        while batch := due_in(of_cell, plan):
            with bars(f"{cell.name}: {len(batch)} runs", len(batch)) as told:
                done = run_all([config for _, config in batch], out / "runs", workers, data_dir, told)
            for (row, _), run in zip(batch, done, strict=True):
                row.add(run)
        yield cell


def due_in(of_cell: list[Row], plan: Plan) -> list[tuple[Row, RunConfig]]:
    """All runs of these rows that need no other's result first."""
    return [(row, config) for row in of_cell for config in row.due(plan.points, plan.seeds)]
