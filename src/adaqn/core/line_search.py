"""Line searches: what they are given, what they answer, and what all of them share.

A search is a generator of step lengths: it yields t and is sent the trial there. The budget, the lowest point and
values that are not finite are the business of :func:`run`, once for all searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from adaqn.core.checks import at_least_one

NEAR = 0.01
"""How near to a wall of values that are not finite, as a share of its distance, a search goes before it stops."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A point on the line: φ(t) and φ′(t).

    >>> Trial(1.0, 2.0, -3.0).finite, Trial(1.0, 2.0, float("nan")).finite
    (True, False)
    """

    t: float
    value: float
    slope: float
    gradient: Tensor | None = None
    """The owner's: no search looks at it, and a trial that is dropped frees it."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


Line = Callable[[float], Trial]
"""t → the trial there; one call is one evaluation."""


@dataclass(frozen=True, eq=False)
class Found:
    """Where a search ended."""

    trial: Trial
    """Where to go: the point that was accepted, else the lowest one below the start, else the start."""
    success: bool
    """Do the conditions of the search hold at ``trial``?"""
    reason: str
    evaluations: int


class LineSearch(Protocol):
    """Finds a step length."""

    def __call__(
        self, line: Line, start: Trial, first: float, *, budget: int, noise: float = 0.0, resolution: float = 0.0
    ) -> Found:
        """From the start along the line.

        Args:
            line: evaluates.
            start: the trial at t = 0, whose slope is negative.
            first: the first trial length, above 0.
            budget: the most calls of ``line``.
            noise: differences of values within it mean nothing.
            resolution: the smallest difference of step lengths that is worth another trial.
        """
        ...


Steps = Generator[float, Trial, "Trial | None"]
"""Yields a length, is sent a finite trial there (or nearer to 0), returns the accepted one or None."""


def run(
    steps: Steps,
    trials: Trials,
    words: str = "",
    accepts: Callable[[Trial], str] | None = None,
) -> Found:
    """Drive a search to its end.

    ``accepts`` names the condition that a trial meets, or is empty; it ends the search at any trial. A search whose
    acceptance depends on more than the trial returns it instead, and ``words`` say what it then meets.
    """
    if not trials.start.finite:
        return trials.failed("the loss or its slope is not finite at the start")
    if not trials.start.slope < 0.0:
        return trials.failed("the loss does not fall along the direction")
    trial: Trial | None = None
    while True:
        try:  # nothing but the search itself: a StopIteration of the closure is the user's
            t = next(steps) if trial is None else steps.send(trial)
        except StopIteration as end:
            accepted: Trial | None = end.value
            return trials.failed() if accepted is None else Found(accepted, True, words, trials.evaluations)
        trial = trials.at(t)
        if trial is None:
            return trials.failed()
        if accepts is not None and (met := accepts(trial)):
            return Found(trial, True, met, trials.evaluations)


class Trials:
    """The evaluations of one search: counted, finite, and the lowest of them kept.

    A trial that is not finite is a wall. Nothing is asked for beyond it again: a length there becomes the middle
    between the wall and the largest finite length below it.
    """

    def __init__(
        self, line: Line, start: Trial, *, budget: int, most: int, noise: float = 0.0, resolution: float = 0.0
    ) -> None:
        self.line, self.start, self.noise, self.resolution = line, start, noise, resolution
        self.budget, self.most = at_least_one("budget", budget), most
        self.evaluations = 0
        self._lowest = start
        self._wall, self._lengths = math.inf, [0.0]  # the shortest length that is not finite; those that are

    @property
    def spent(self) -> bool:
        return self.evaluations >= min(self.budget, self.most)

    def at(self, t: float) -> Trial | None:
        """The trial at t, or nearer to 0 where it is not finite; None where there is nothing left to try."""
        while not self.spent:
            t = t if t < self._wall else self._before_the_wall()
            if not t > 0.0:
                return None
            self.evaluations += 1
            trial = self.line(t)
            if trial.finite:
                self._lengths.append(t)
                if trial.value < min(self._bar(trial), self._lowest.value):
                    self._lowest = trial
                return trial
            self._wall = t
        return None

    def _bar(self, trial: Trial) -> float:
        """What a value must be below to be lower than the start. Where the loss still falls, slopes vouch for it."""
        return self.start.value - (0.0 if trial.slope < 0.0 else self.noise)

    def failed(self, reason: str = "") -> Found:
        """Nothing was acceptable: the lowest point below the start, else the start.

        Behind a minimum of the line it must be lower by more than noise.
        """
        return Found(self._lowest, False, reason or self._why(), self.evaluations)

    def _before_the_wall(self) -> float:
        """A length below the wall, or 0 where none is worth a trial."""
        floor = max(t for t in self._lengths if t < self._wall)
        # From 0 the middle would take three trials for every decade that the first length is too long.
        t = 0.5 * (floor + self._wall) if floor > 0.0 or self.evaluations == 1 else 0.1 * self._wall
        worth = self._wall - floor > max(self.resolution, NEAR * floor)
        return t if worth and floor < t < self._wall else 0.0

    def _why(self) -> str:
        if len(self._lengths) == 1:
            return "nothing finite was found"
        if self.evaluations >= self.budget:
            return "the budget of evaluations is spent"
        if self._lowest is self.start:
            return "no lower value was found"
        if self.evaluations >= self.most:
            return f"no point in {self.most} trials was acceptable"
        if math.isfinite(self._wall):
            return "the loss is not finite further on"
        return "the steps that are left to try differ by too little"
