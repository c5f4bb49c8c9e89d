"""A search, read from the folders of its runs: every process that works at it finds the same points due.

Points come in rounds, and a round counts when all of it is there: which of its runs ended first changes nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.search.points import IN_TIME, Point, check, choices, configured, due
from adaqn.experiments.training.averages import AVERAGED
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished, check_data, finished, folder_name
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.parallel import Job, work_off
from adaqn.experiments.training.workers import check_workers

Curves = dict[str, RunConfig]
"""What is tuned, by name: each an optimizer, perhaps with options of its own."""
Told = Callable[[dict[str, int]], None]
"""Is told how many runs of which curve are finished."""
Clock = Callable[[], float | None]
"""→ seconds of a run of the method whose time is the unit; ``None`` is not known yet."""
REFERENCE = "adam"
"""Its runs are the unit of budgets in time; where it has no part, those of the first curve."""
MOST_IN_TIME = 20
"""Points, of a method however fast."""


@dataclass(frozen=True)
class Tried:
    """A point that was run."""

    loss: float
    """On the validation split at the end; infinite if it was not finite."""
    seconds: float


Before = Mapping[Point, Tried]
"""Points that were run elsewhere, and need not be run again."""


class CurveSearch:
    """The search of one curve."""

    def __init__(
        self, base: RunConfig, search: str, budget: int, runs: Path, data_dir: Path | None, clock: Clock,
        before: Before | None = None,
    ) -> None:  # fmt: skip
        check(search, base.optimizer, budget)
        self.base, self.search, self.budget, self.clock = base, search, budget, clock
        self.runs, self.data_dir, self.before = runs, data_dir, dict(before or {})
        self.tried: dict[Point, Tried] = {}
        """Of the rounds that are over."""
        self._round: list[Point] = []
        self._found: dict[Point, Finished] = {}

    @property
    def count(self) -> int | None:
        """Points that it may have; ``None`` is not known yet."""
        if self.search != IN_TIME:
            return self.budget
        if not self.tried:
            return 1
        unit, own = self.clock(), statistics.fmean(tried.seconds for tried in self.tried.values())
        return None if unit is None else min(MOST_IN_TIME, max(1, round(self.budget * unit / own)))

    def due(self) -> list[Point]:
        """Those of the present round that are not finished; none if the search is over, or if its time is not known."""
        while True:
            count = self.count
            if count is None:
                return []
            losses = {point: tried.loss for point, tried in self.tried.items()}
            points = due("ladder" if self.search == IN_TIME else self.search, self.base.optimizer, count, losses)
            self._round = points
            missing = [point for point in points if not self._is_finished(point)]
            if missing or not points:
                return missing
            self.tried |= self._finished_of_round()

    def is_over(self) -> bool:
        return not self.due() and self.count is not None

    def jobs(self) -> list[Job]:
        """The same as runs."""
        return [self._job(point) for point in self.due()]

    def _job(self, point: Point) -> Job:
        config = configured(self.base, point)
        return Job(config, self.runs / folder_name(config))

    def _is_finished(self, point: Point) -> bool:
        if point in self.before:
            return True
        if point not in self._found:
            job = self._job(point)
            if (found := finished(job.folder)) is not None:
                check_data(found, job.config, self.data_dir)
                self._found[point] = found
        return point in self._found

    def _result(self, point: Point) -> Tried:
        if point in self.before:
            return self.before[point]
        result = self._found[point].result
        final = result["final"]
        loss = final["valid_loss"]
        if self.base.averaging is not None:  # that of the run, or of an optimizer that averages by itself
            loss = final.get(f"{AVERAGED}valid_loss", loss)
        return Tried(loss if math.isfinite(loss) else math.inf, result["seconds"])

    def best(self) -> Point | None:
        """Of the lowest loss; of equals, the smallest step."""
        return min(self.tried, key=lambda point: (self.tried[point].loss, point.lr), default=None)

    def finished_runs(self) -> int:
        """Of the rounds that are over, and of the present one."""
        return len({*self.tried, *self._finished_of_round()})

    def _finished_of_round(self) -> dict[Point, Tried]:
        return {point: self._result(point) for point in self._round if self._is_finished(point)}

    def seconds_of_default(self) -> float | None:
        """Of the first point, which is that of the default step size."""
        return next((tried.seconds for tried in self.tried.values()), None)

    def results(self) -> dict[str, Any]:
        """The best point, and every finished point with its validation loss, those of the present round too."""
        known = {**self.tried, **self._finished_of_round()}
        points = [{**self._described(point, tried), "seconds": tried.seconds} for point, tried in known.items()]
        points.sort(key=lambda point: (point["valid_loss"], point["lr"]))
        best = self.best()
        return {"best": None if best is None else self._described(best, self.tried[best]), "trials": points}

    def _described(self, point: Point, tried: Tried) -> dict[str, Any]:
        return {"lr": point.lr, **choices(self.base.optimizer)[point.choice], "valid_loss": tried.loss}


def searches(
    curves: Curves,
    search: str,
    budget: int,
    runs: Path,
    data_dir: Path | None = None,
    before: Mapping[str, Before] | None = None,
) -> dict[str, CurveSearch]:
    """Of several curves, with one budget; ``before`` is what is known of some of them."""
    found: dict[str, CurveSearch] = {}
    reference = next((name for name, base in curves.items() if base.optimizer == REFERENCE), next(iter(curves)))

    def clock() -> float | None:
        return found[reference].seconds_of_default()

    for name, base in curves.items():
        found[name] = CurveSearch(base, search, budget, runs, data_dir, clock, (before or {}).get(name))
    return found


def for_optimizers(base: RunConfig, names: Sequence[str]) -> Curves:
    """The same run for several optimizers."""
    return {name: replace(base, optimizer=name) for name in names}


def tune(
    curves: Curves,
    budget: int,
    out: Path,
    *,
    search: str = "grid",
    workers: int = 2,
    data_dir: Path | None = None,
    told: Told | None = None,
) -> dict[str, dict[str, Any]]:
    """Run the whole search; returns for each curve its best point by validation loss, and all points."""
    # Only what was asked for: an option that a preset says may be the one that is searched.
    curves = {curve: replace(resolved(base), options=base.options) for curve, base in curves.items()}
    found = searches(curves, search, budget, out / "runs", data_dir)
    check_workers(workers)
    for base in curves.values():
        open_run(base, None, data_dir)  # a mistake is told here, once, rather than by every worker
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from error

    def jobs() -> list[Job]:
        asked = [job for of_curve in found.values() for job in of_curve.jobs()]
        if told is not None:
            told({curve: of_curve.finished_runs() for curve, of_curve in found.items()})
        return asked

    work_off(jobs, workers, data_dir)
    return {curve: of_curve.results() for curve, of_curve in found.items()}
