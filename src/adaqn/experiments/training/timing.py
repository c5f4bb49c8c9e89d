"""How long steps and runs take here, from a few real steps of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adaqn.experiments.training.run import Run, subnormals_flushed

CYCLES = 2
"""Timed after one cycle that warms up: at least so many of adaQN's cycles, whose last step costs more than the rest."""
LONGEST_CYCLE = 20
"""Of cycles whose length adapts."""
SECONDS = 1.0
"""Go on timing until so long."""
WARM_UP = 120
"""Steps before the first turn: memories are full, bases are made."""
TURN = 20
"""Steps of a turn: whole cycles, and whole intervals between two refreshments of a basis."""
TURNS = 7
WHOLE_RUN = 900
"""Evaluations of a run on the whole batch that is timed: slices of a minimisation may be longer than a turn."""
SINGLE_CALL = 80
"""Of one that ends in a single call."""


@dataclass(frozen=True)
class Cost:
    """What one curve will take, alone on the machine."""

    panel: str
    curve: str
    runs: int
    """Those that are still to do."""
    seconds_per_run: float
    """With its evaluations."""
    seconds_per_step: float | None = None
    seconds_per_evaluation: float | None = None

    @property
    def hours(self) -> float:
        """All runs of the curve, one after the other."""
        return self.runs * self.seconds_per_run / 3600


def cost_of(panel: str, curve: str, runs: int, example: Run) -> Cost:
    """So many runs like that one."""
    step, evaluation = time_step(example)
    evaluations = 1 + -(-example.total // example.every)
    return Cost(panel, curve, runs, example.total * step + evaluations * evaluation, step, evaluation)


@subnormals_flushed()  # as in training
def time_step(run: Run) -> tuple[float, float]:
    """Seconds of a step, over whole cycles, and of an evaluation of both splits."""
    length = run.config.options.get("cycle_length", 1)
    length = length if isinstance(length, int) else LONGEST_CYCLE
    _advance(run, length)
    start, count = time.perf_counter(), 0
    while count < CYCLES * length or time.perf_counter() - start < SECONDS:
        before = run.step
        _advance(run, length)
        count += run.step - before
        if run.step == before:  # one that ends in a single call
            return run.seconds / run.step, 0.0
    step = (time.perf_counter() - start) / count
    start = time.perf_counter()
    run.measure()
    return step, time.perf_counter() - start


def _advance(run: Run, steps: int) -> None:
    """At least so many steps or evaluations, as far as the run has some left."""
    before = run.step
    while run.step - before < steps and (run.step < run.total or not run.counts_evaluations):
        run.advance()


def side_by_side(make: Mapping[str, Callable[[], Run]]) -> dict[str, list[float]]:
    """Milliseconds of a step in each turn, by name.

    All take turns in one process, some steps each, so that whatever disturbs the machine disturbs them alike. A run
    that ends in a single call is made anew for every turn.
    """
    runs = {name: make_run() for name, make_run in make.items()}
    turns: dict[str, list[float]] = {name: [] for name in runs}
    with subnormals_flushed():  # as in training
        for run in runs.values():
            _advance(run, WARM_UP)
        for _ in range(TURNS):
            for name, run in runs.items():
                turns[name] += _turn(make[name]() if run.blocking else run)
    return turns


def _turn(run: Run) -> list[float]:
    """Milliseconds of a step, or of an evaluation where they are counted; nothing if the run is at its end."""
    step, seconds = run.step, run.seconds
    _advance(run, TURN)
    return [(run.seconds - seconds) / (run.step - step) * 1e3] if run.step > step else []
