"""How long steps and runs take here, from a few real steps of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
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


def time_step(run: Run) -> tuple[float, float]:
    """Seconds of a step, over whole cycles, and of an evaluation of both splits."""
    length = run.config.options.get("cycle_length", 1)
    length = length if isinstance(length, int) else LONGEST_CYCLE
    for _ in range(length):
        run.advance()
    start, count = time.perf_counter(), 0
    while count < CYCLES * length or time.perf_counter() - start < SECONDS:
        for _ in range(length):
            run.advance()
        count += length
    step = (time.perf_counter() - start) / count
    start = time.perf_counter()
    run.measure()
    return step, time.perf_counter() - start


def side_by_side(runs: Mapping[str, Run]) -> dict[str, list[float]]:
    """Milliseconds of a step in each turn, by name.

    All take turns in one process, some steps each, so that whatever disturbs the machine disturbs them alike.
    """
    turns: dict[str, list[float]] = {name: [] for name in runs}
    with subnormals_flushed():  # as in training
        for run in runs.values():
            for _ in range(WARM_UP):
                run.advance()
        for _ in range(TURNS):
            for name, run in runs.items():
                start = time.perf_counter()
                for _ in range(TURN):
                    run.advance()
                turns[name].append((time.perf_counter() - start) / TURN * 1e3)
    return turns
