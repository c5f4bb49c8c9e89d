"""Run what is missing of the study, say how long it will take, and time its methods side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel
from adaqn.experiments.optimizers import entry
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import mapping, number, record
from adaqn.experiments.search.points import due as due_points
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.rows import Row
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import RESULT, check_data, finished, folder_name
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.pace import Left, units
from adaqn.experiments.training.parallel import Job
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

TIMES = record({"milliseconds": mapping(record({"median": number(0.0)}))})
"""A ``timing.json``; one that is damaged is made again by ``adaqn study --time``."""


def rows(panel: Panel, folder: Path) -> list[Row]:
    """One per method and regime, with what is known of each."""
    return [Row(panel, variant, folder) for variant in panel.variants]


class StudyWork:
    """What the study still needs: step sizes row by row, then seed by seed."""

    def __init__(self, plan: Plan, folder: Path, runs: Path, data_dir: Path | None) -> None:
        self.plan, self.folder, self.runs, self.data_dir = plan, folder, runs, data_dir

    def rows(self) -> list[tuple[int, Row]]:
        """As their files are now, for others may write them too; with the place of their panel."""
        return [(place, row) for place, panel in enumerate(self.plan.panels) for row in rows(panel, self.folder)]

    def due(self) -> list[Job]:
        """Seed 0 of all panels first; finished runs go into the files of their rows."""
        jobs = [job for place, row in self.rows() for job in self._of_row(place, row)]
        return sorted(jobs, key=lambda job: job.group)

    def _of_row(self, place: int, row: Row) -> list[Job]:
        while configs := row.due(self.plan.seeds, row.method in self.plan.as_it_comes):
            jobs = [self._job(config, place, row) for config in configs]
            left = [job for job in jobs if not is_there(job.folder / RESULT)]
            if left and is_searching(row):  # a round counts when all of it is there
                return left
            for job in (job for job in jobs if job not in left):
                found = finished(job.folder)
                assert found is not None
                check_data(found, job.config, self.data_dir)
                row.add(found)
            if left:
                return left
        return []

    def _job(self, config: RunConfig, place: int, row: Row) -> Job:
        # A plan that says what comes first is made panel by panel; others seed by seed through all panels.
        group = (self._stage(config, row), place, config.seed) if self.plan.first else (0, config.seed, place)
        return Job(config, self.runs / folder_name(config), group, row.panel.name)

    def _stage(self, config: RunConfig, row: Row) -> int:
        """What is claimed without a search, then the rivals it is measured by, then all the rest."""
        if row.method in self.plan.as_it_comes:
            return 0 if row.untuned and config.lr == row.default else 2
        return 1 if row.method in self.plan.first else 2

    def left(self) -> list[Left]:
        return [
            Left(row.panel.name, row.variant.name, count, count * units(row.base))
            for _, row in self.rows()
            if (count := row.remaining(self.plan.seeds))
        ]


def is_searching(row: Row) -> bool:
    return bool(due_points(row.panel.search, row.method, row.panel.budget, row.tried()))


def missing(plan: Plan, folder: Path) -> list[str]:
    """A line for every row that is not complete: how much of it there is."""
    found = []
    for row in (row for panel in plan.panels for row in rows(panel, folder) if row.due(plan.seeds)):
        best = row.best_lr()
        seeds = (
            0 if best is None or is_searching(row) else sum(row.find(best, i) is not None for i in range(plan.seeds))
        )
        how_much = f"{len(row.tried())} of {row.panel.budget} step sizes, {seeds} of {plan.seeds} seeds"
        found.append(f"{row.panel.name}, {row.variant.name}: {how_much}")
    return found


def costs(plan: Plan, folder: Path, data_dir: Path | None) -> list[Cost]:
    """One per row that is not finished: from runs of its method on its cell, or from a few steps if there are none."""
    found = []
    known: dict[tuple[str, str], Cost] = {}  # a schedule takes no time: one regime speaks for the others
    for row in (row for panel in plan.panels for row in rows(panel, folder)):
        left, key = row.remaining(plan.seeds), (row.panel.name, row.method)
        if row.runs:
            seconds = statistics.fmean(run["seconds"] for run in row.runs)
            known[key] = Cost(row.panel.name, row.variant.name, left, seconds)
        elif left and key not in known:
            known[key] = _cost(row, left, data_dir)
        if left:
            found.append(replace(known[key], curve=row.variant.name, runs=left))
    return found


def _cost(row: Row, left: int, data_dir: Path | None) -> Cost:
    if not entry(row.method).blocking:
        return cost_of(row.panel.name, row.variant.name, left, open_run(row.base, None, data_dir))
    short = open_run(replace(row.base, steps=SINGLE_CALL), None, data_dir)
    seconds, _ = time_step(short)
    assert row.base.steps is not None
    return Cost(row.panel.name, row.variant.name, left, row.base.steps * seconds, seconds)


def _timed(row: Row) -> RunConfig:
    """The run that is timed; long enough for all turns where evaluations are counted."""
    config = replace(row.base, lr=row.best_lr() or row.default)
    if not is_whole(config.task):
        return config
    return replace(config, steps=SINGLE_CALL if entry(row.method).blocking else WHOLE_RUN)


def measure(panel: Panel, folder: Path, data_dir: Path | None = None, always: Sequence[str] = ()) -> dict[str, Any]:
    """Time these methods and every one that was run, or all if none was, at their best step sizes.

    Writes ``timing.json``.

    Runs of a study are made on different days beside other work, so their own clocks compare nothing: time to a loss is
    steps to it times this. A method is timed in its first regime, the average of which is the run's own work.
    """
    everyone = rows(panel, folder)
    first: dict[str, Row] = {}
    for row in [row for row in everyone if row.runs or row.method in always] or everyone:
        first.setdefault(row.method, row)
    runs = {method: partial(open_run, _timed(row), None, data_dir) for method, row in first.items()}
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


def all_times(plan: Plan, folder: Path) -> dict[str, dict[str, float]]:
    """Cell → method → milliseconds of a step."""
    return {panel.name: known_times(panel, folder) for panel in plan.panels}


def known_times(panel: Panel, folder: Path) -> dict[str, float]:
    """Method → milliseconds of a step; empty where none were measured."""
    path = timing_file(panel, folder)
    if not is_there(path):
        return {}
    said = read_json(path, TIMES)
    return {method: float(times["median"]) for method, times in said["milliseconds"].items()}
