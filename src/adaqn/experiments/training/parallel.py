"""Many runs, so many at a time, by one process or by several on one folder: what is left to do is read from the folder.

The same list in the same order on every machine; a run goes to who claims it first. No run waits for another one that
it does not need: a worker that is free takes the next that may be made now.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.claims import busy
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished, check_data, finished, folder_name, on_its_way
from adaqn.experiments.training.opening import run_one as run_one
from adaqn.experiments.training.run import Progress
from adaqn.experiments.training.workers import DIED, FAILED, Ended, Workers, started_workers
from adaqn.experiments.training.workers import check_workers as check_workers

LISTEN = 0.5
"""Seconds until the next look for an interrupt, or for the end of the budget."""
LOOK_AGAIN = 5.0
"""Seconds between two looks at what is due, where nothing has ended here: others may be at work too."""
SLICE = 600.0
"""Seconds of a run before one of the same group that is less advanced may have its place."""
MOST_DEATHS = 2
LOST = "its process was killed {} times, perhaps for want of memory: give fewer --workers, or run it alone"

RunListener = Callable[[int, Progress], None]


@dataclass(frozen=True)
class Job:
    """A run that may be made now."""

    config: RunConfig
    folder: Path
    group: tuple[int, ...] = ()
    """Groups are made in their order. Long runs of one advance side by side."""
    cell: str = ""
    """Of the figure or study that it belongs to."""


Due = Callable[[], list[Job]]
"""→ what is neither finished nor waits for others, most useful first; also what is at work."""


@dataclass
class Outcome:
    """How it ended."""

    complete: bool
    """Is nothing left to do, failures apart? Else the time was over."""
    failures: dict[Path, Exception] = field(default_factory=dict)
    left: str = ""
    """How long the rest will take, in words."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def deadline(hours: float | None) -> float:
    """So many hours from now, by :func:`time.monotonic`."""
    if hours is not None and not hours >= 0.0:
        raise UserError(f"the budget must be a number of hours of at least 0, got {hours}")
    return math.inf if hours is None else time.monotonic() + 3600.0 * hours


def work_off(
    due: Due,
    workers: int,
    data_dir: Path | None = None,
    *,
    until: float = math.inf,
    listener: Callable[[Job, Progress], None] | None = None,
    keep_going: bool = False,
) -> Outcome:
    """Make what is due until nothing is left.

    Args:
        due: is asked again and again.
        workers: runs at a time.
        data_dir: where the data lies.
        until: when to stop, by :func:`time.monotonic`; runs at work are saved.
        listener: is told how far a run is.
        keep_going: may others go on when one fails?
    """
    with started_workers(workers, data_dir) as team:
        shift = Shift(team, due)
        while True:
            team.check_interrupt()
            if time.monotonic() >= until:
                return Outcome(False, shift.failures)
            shift.look()
            if not shift.jobs and not team.at_work:
                return Outcome(True, shift.failures)
            for folder, word in team.told(LISTEN if team.at_work else 0.0):
                job = shift.heard(folder, word)
                if isinstance(word, Progress) and listener is not None:
                    listener(job, word)
            if shift.failures and not keep_going:
                raise next(iter(shift.failures.values()))
            if not team.at_work:  # all that is left is made elsewhere
                time.sleep(LISTEN)


class Shift:
    """What the workers of this process are at."""

    def __init__(self, team: Workers, due: Due) -> None:
        self.team, self.due = team, due
        self.jobs: list[Job] = []
        self.failures: dict[Path, Exception] = {}
        self._looked = -math.inf
        self._begun: dict[Path, tuple[Job, float]] = {}
        self._shares: dict[Path, float] = {}
        self._deaths: Counter[Path] = Counter()

    def look(self) -> None:
        """Give work to those who have none, and the places of long runs to those that are behind."""
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN:
            return
        self._looked = now
        self.jobs = [job for job in self.due() if job.folder not in self.failures]
        for _, jobs in groupby(self.jobs, key=lambda job: job.group):
            waiting = sorted((job for job in jobs if self._is_waiting(job)), key=self._share)
            free = self.team.free
            for job in waiting[:free]:
                self._begun[job.folder] = (job, now)
                self.team.start(job.config, job.folder)
            if waiting[free:]:
                self._make_room_for(waiting[free])
                return

    def _is_waiting(self, job: Job) -> bool:
        return job.folder not in self.team.at_work and busy(job.folder, time.time()) is None

    def _share(self, job: Job) -> float:
        """How far it is."""
        if job.folder not in self.team.at_work:
            found = on_its_way(job.folder)
            return 0.0 if found is None else found.share
        return self._shares.get(job.folder, 0.0)

    def _make_room_for(self, waiting: Job) -> None:
        """A run that had its time makes room, if it is of a later group, or further than one of its own."""
        had_theirs = [
            job
            for job, begun in self._begun.values()
            if job.folder in self.team.at_work
            and time.monotonic() - begun > SLICE
            and (job.group, self._share(job)) > (waiting.group, self._share(waiting))
            and not entry(job.config.optimizer).blocking  # it would begin anew
        ]
        if had_theirs:
            self.team.stop(max(had_theirs, key=lambda job: (job.group, self._share(job))).folder)

    def heard(self, folder: Path, word: Progress | Ended) -> Job:
        """Note what a worker said of its run."""
        if isinstance(word, Progress):
            self._shares[folder] = word.step / word.steps
        else:
            self._looked = -math.inf
            if word.how == DIED:
                self._deaths[folder] += 1
            if word.how == FAILED or self._deaths[folder] >= MOST_DEATHS:
                lost = UserError(f"{folder}: {LOST.format(MOST_DEATHS)}")
                self.failures[folder] = word.error or lost
        return self._begun[folder][0]


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    workers: int,
    data_dir: Path | None = None,
    listener: RunListener | None = None,
) -> list[Finished]:
    """All of these runs; in the order of ``configs``."""
    jobs = [Job(config, root / folder_name(config), (index,)) for index, config in enumerate(configs)]
    done: dict[int, Finished] = {}

    def due() -> list[Job]:
        for job in jobs:
            (index,) = job.group
            found = None if index in done else finished(job.folder)
            if found is not None:
                check_data(found, job.config, data_dir)
                done[index] = found
                if listener is not None:
                    listener(index, Progress(found.result["steps"], found.result["steps"], None))
        return [job for job in jobs if job.group[0] not in done]

    def tell(job: Job, progress: Progress) -> None:
        if listener is not None:
            listener(job.group[0], progress)

    work_off(due, min(check_workers(workers), len(jobs)), data_dir, listener=tell)
    return [done[index] for index in range(len(jobs))]
