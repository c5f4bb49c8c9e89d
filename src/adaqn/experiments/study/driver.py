"""Run what is missing of the study, say how long it will take, and time its methods side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel
from adaqn.experiments.optimizers import entry
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import mapping, number, record
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.rows import Row
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import RunListener, run_all
from adaqn.experiments.training.storage import write_sealed
from adaqn.experiments.training.timing import (
    SINGLE_CALL,
    TURN,
    TURNS,
    WHOLE_RUN,
    Cost,
    cost_of,
    side_by_side,
    time_step,
)
from adaqn.experiments.training.whole_settings import is_whole

Bars = Callable[[str, int], AbstractContextManager[RunListener]]
"""Makes the progress bar of a round: (what it is, how many runs)."""


TIMES = record({"milliseconds": mapping(record({"median": number(0.0)}))})
"""A ``timing.json``; one that is damaged is made again by ``adaqn study --time``."""


def rows(panel: Panel, folder: Path) -> list[Row]:
    """One per method, with what is known of each."""
    return [Row(panel, variant, folder) for variant in panel.variants]


def run_study(plan: Plan, folder: Path, out: Path, workers: int, data_dir: Path | None, bars: Bars) -> Iterator[Panel]:
    """Panel by panel, in rounds that know the results of the one before; yields each when all its rows are finished."""
    for panel in plan.panels:
        of_panel = rows(panel, folder)
        while batch := [(row, config) for row in of_panel for config in row.due(plan.seeds)]:
            with bars(f"{panel.name}: {len(batch)} runs", len(batch)) as told:
                done = run_all([config for _, config in batch], out / "runs", workers, data_dir, told)
            for (row, _), run in zip(batch, done, strict=True):
                row.add(run)
        yield panel


def costs(plan: Plan, folder: Path, data_dir: Path | None) -> list[Cost]:
    """One per row that is not finished: from its own runs where there are some, else from a few real steps."""
    found = []
    for row in (row for panel in plan.panels for row in rows(panel, folder)):
        left = row.remaining(plan.seeds)
        if left and row.runs:
            seconds = statistics.fmean(run["seconds"] for run in row.runs)
            found.append(Cost(row.panel.name, row.method, left, seconds))
        elif left:
            found.append(_cost(row, left, data_dir))
    return found


def _cost(row: Row, left: int, data_dir: Path | None) -> Cost:
    if not entry(row.method).blocking:
        return cost_of(row.panel.name, row.method, left, open_run(row.base, None, data_dir))
    short = open_run(replace(row.base, steps=SINGLE_CALL), None, data_dir)
    seconds, _ = time_step(short)
    assert row.base.steps is not None
    return Cost(row.panel.name, row.method, left, row.base.steps * seconds, seconds)


def _timed(row: Row) -> RunConfig:
    """The run that is timed; long enough for all turns where evaluations are counted."""
    config = replace(row.base, lr=row.best_lr() or row.default, average=None)
    if not is_whole(config.task):
        return config
    return replace(config, steps=SINGLE_CALL if entry(row.method).blocking else WHOLE_RUN)


def measure(panel: Panel, folder: Path, data_dir: Path | None = None) -> dict[str, Any]:
    """Time every method at its best step size, and write ``timing.json``.

    Runs of a study are made on different days beside other work, so their own clocks compare nothing: time to a loss is
    steps to it times this.
    """
    runs = {row.method: partial(open_run, _timed(row), None, data_dir) for row in rows(panel, folder)}
    said = {
        "threads": panel.base.threads,
        "steps": TURN * TURNS,
        "milliseconds": {
            method: {
                "median": round(statistics.median(times), 3),
                "low": round(min(times), 3),
                "high": round(max(times), 3),
            }
            for method, times in side_by_side(runs).items()
        },
    }
    write_sealed(timing_file(panel, folder), said)
    return said


def timing_file(panel: Panel, folder: Path) -> Path:
    return folder / panel.name / "timing.json"


def known_times(panel: Panel, folder: Path) -> dict[str, float]:
    """Method → milliseconds of a step; empty where none were measured."""
    path = timing_file(panel, folder)
    if not is_there(path):
        return {}
    said = read_json(path, TIMES)
    return {method: float(times["median"]) for method, times in said["milliseconds"].items()}
