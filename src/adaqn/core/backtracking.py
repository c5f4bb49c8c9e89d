"""Armijo's condition by backtracking: a search that looks at values alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaqn.core.checks import at_least_one, between
from adaqn.core.line_search import Found, Line, Steps, Trial, Trials, run


@dataclass(frozen=True)
class Backtracking:
    """φ(t) ≤ φ(0) + c1·t·φ′(0) + noise, from the first length downwards.

    The next length is where a parabola through φ(0), φ′(0) and φ(t) is lowest, or a cubic through the last two values,
    but at most ``shrink`` and at least ``least`` times the last one. Slopes of trials are never used.

    Args:
        c1: the share of the decrease that the slope promises.
        shrink: the most that is left of a length that was not accepted.
        least: the least that is left of it.
        most: trials.

    >>> search = Backtracking()
    >>> parabola = lambda t: Trial(t, (t - 3.0) ** 2, 2.0 * (t - 3.0))
    >>> found = search(parabola, parabola(0.0), 20.0, budget=10)
    >>> found.trial.t, found.reason, found.evaluations
    (3.0, 'Armijo', 2)
    """

    c1: float = 1e-4
    shrink: float = 0.5
    least: float = 0.1
    most: int = 25

    def __post_init__(self) -> None:
        between("c1", self.c1, 0.0, 1.0)
        between("shrink", self.shrink, 0.0, 1.0)
        between("least", self.least, 0.0, self.shrink, or_equal=True)
        at_least_one("most", self.most)

    def __call__(
        self, line: Line, start: Trial, first: float, *, budget: int, noise: float = 0.0, resolution: float = 0.0
    ) -> Found:
        trials = Trials(line, start, budget=budget, most=self.most, noise=noise, resolution=resolution)

        def accepts(trial: Trial) -> str:
            return "Armijo" if trial.value <= start.value + self.c1 * trial.t * start.slope + noise else ""

        return run(self._steps(start, first, resolution), trials, accepts=accepts)

    def _steps(self, start: Trial, first: float, resolution: float) -> Steps:
        last, new = None, (yield first)
        while True:
            t = lowest_of_parabola(start, new) if last is None else lowest_of_values(start, last, new)
            # A shape without a minimum has none to offer: the longest step that is allowed.
            t = min(max(t, self.least * new.t), self.shrink * new.t) if math.isfinite(t) else self.shrink * new.t
            if not t > resolution:
                return None
            last, new = new, (yield t)


def lowest_of_parabola(start: Trial, new: Trial) -> float:
    """Where the parabola through φ(0), φ′(0) and φ(t) is lowest."""
    excess = new.value - start.value - new.t * start.slope
    return -0.5 * start.slope * new.t * (new.t / excess) if excess > 0.0 else math.nan


def lowest_of_values(start: Trial, a: Trial, b: Trial) -> float:
    """Where the cubic through φ(0), φ′(0), φ(a) and φ(b) is lowest."""
    # φ(t) = φ(0) + tφ′(0) + t²(q + ct): the line through what is left at a and b, divided by t²
    left_a, left_b = (((trial.value - start.value) / trial.t - start.slope) / trial.t for trial in (a, b))
    if a.t == b.t:
        return math.nan
    c = (left_b - left_a) / (b.t - a.t)
    q = left_b - c * b.t
    square = q * q - 3.0 * c * start.slope
    if not 0.0 <= square < math.inf:
        return math.nan
    below = q + math.sqrt(square)
    return -start.slope / below if below != 0.0 else math.nan  # the root that has no cancellation for q > 0
