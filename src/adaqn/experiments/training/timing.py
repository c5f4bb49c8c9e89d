"""How long a figure will take here, from a few real steps of each of its curves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from adaqn.experiments.comparison.panels import Planned
from adaqn.experiments.training.folder import finished, folder_name
from adaqn.experiments.training.run import Run

CYCLES = 2
"""Timed after one cycle that warms up: at least so many of adaQN's cycles, whose last step costs more than the rest."""
SECONDS = 1.0
"""Go on timing until so long."""


@dataclass(frozen=True)
class Cost:
    """What one curve will take, alone on the machine."""

    panel: str
    curve: str
    runs: int
    """Those that are still to do."""
    seconds_per_step: float
    seconds_per_evaluation: float
    hours: float
    """All runs of the curve, one after the other."""


def estimate(planned: list[Planned], out: Path, data_dir: Path | None) -> list[Cost]:
    """One row per curve; finished runs cost nothing."""
    open_runs: dict[tuple[str, str], list[Planned]] = {}
    for p in planned:
        waiting = open_runs.setdefault((p.panel.title, p.variant.label), [])
        if finished(out / "runs" / folder_name(p.config)) is None:
            waiting.append(p)
    costs = []
    for (panel, curve), waiting in open_runs.items():
        if not waiting:
            costs.append(Cost(panel, curve, 0, 0.0, 0.0, 0.0))
            continue
        run = Run(waiting[0].config, None, data_dir)
        step, evaluation = time_step(run)
        evaluations = 1 + -(-run.total // run.every)
        hours = len(waiting) * (run.total * step + evaluations * evaluation) / 3600
        costs.append(Cost(panel, curve, len(waiting), step, evaluation, hours))
    return costs


def time_step(run: Run) -> tuple[float, float]:
    """Seconds of a step, over whole cycles, and of an evaluation of both splits."""
    length = getattr(getattr(run.optimizer, "options", None), "cycle_length", 1)
    whole = CYCLES * length
    for _ in range(length):
        run.advance()
    start, count = time.perf_counter(), 0
    while count < whole or time.perf_counter() - start < SECONDS:
        for _ in range(length):
            run.advance()
        count += length
    step = (time.perf_counter() - start) / count
    start = time.perf_counter()
    run.measure()
    return step, time.perf_counter() - start
