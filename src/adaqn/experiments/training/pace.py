"""How long what is left will take, from the seconds that its like took so far."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import Job
from adaqn.experiments.training.run import Progress

SILENCE = 300.0
"""Seconds without a word of a run at work: longer than any step or evaluation."""


def units(config: RunConfig) -> float:
    """The length of a run, in what its panel counts: steps where they are given, else epochs."""
    return float(config.steps or config.epochs)


@dataclass(frozen=True)
class Left:
    """Of one method on one task."""

    cell: str
    optimizer: str
    runs: int
    units: float


class Pace:
    """Seconds of a step or epoch of every method on every task that was seen at work."""

    def __init__(self) -> None:
        self._begun: dict[Path, tuple[float, float]] = {}
        self._opened: set[Path] = set()
        self._last: dict[Path, tuple[float, float]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def note(self, job: Job, progress: Progress) -> None:
        """What a run at work says, evaluations and all."""
        now, done = time.monotonic(), progress.step / progress.steps * units(job.config)
        told, reached = self._last.get(job.folder, (-math.inf, 0.0))
        if now - told > SILENCE or done < reached:  # it was stopped, and goes on
            self._begun[job.folder] = (now, done)
            self._opened.add(job.folder)
        self._last[job.folder] = (now, done)
        begun, before = self._begun[job.folder]
        if done > before and job.folder in self._opened and progress.step < progress.steps:
            # The first step came after an evaluation that is as long as many steps: time begins with the second.
            self._opened.remove(job.folder)
            self._begun[job.folder] = (now, done)
        elif done > before:
            self._seconds[job.cell, job.config.optimizer] = (now - begun) / (done - before)

    def seconds(self, left: Sequence[Left]) -> tuple[float, bool]:
        """(Of all that is left, one run at a time; is that all?) Tasks of which nothing was seen are not counted.

        Methods that were not seen take as long as the others on their task.
        """
        total, is_all = 0.0, True
        for part in (part for part in left if part.units):
            there = [seconds for (cell, _), seconds in self._seconds.items() if cell == part.cell]
            is_all = is_all and bool(there)
            usual = statistics.fmean(there) if there else 0.0
            total += part.units * self._seconds.get((part.cell, part.optimizer), usual)
        return total, is_all
