"""The paper's grid search on Optuna: resumable, shared by several workers, the same budget for every optimizer."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna

from adaqn.experiments.errors import UserError
from adaqn.experiments.search.points import best_step_size, grid, second_stage
from adaqn.experiments.search.trials import Curves, finished_counts, prepare, results, running, work
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.interrupts import interrupts_noted
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.run import Run

ASK_EVERY = 5.0
"""Seconds between two questions to the database about how far the workers are."""


def for_optimizers(base: RunConfig, names: Sequence[str]) -> Curves:
    """The same run for several optimizers."""
    return {name: replace(base, optimizer=name) for name in names}


def tune(
    curves: Curves,
    budget: int,
    out: Path,
    *,
    search: str = "grid",
    url: str | None = None,
    name: str = "tuning",
    workers: int = 2,
    data_dir: Path | None = None,
    told: Callable[[dict[str, int]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run the whole search; returns for each curve its best point by validation loss, and all points."""
    points = {curve: grid(base.optimizer, budget, search) for curve, base in curves.items()}  # tells of a wrong budget
    if workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    # Only what was asked for: an option that a preset says may be the one that is searched.
    curves = {curve: replace(resolved(base), options=base.options) for curve, base in curves.items()}
    for base in curves.values():
        Run(base, None, data_dir)  # a mistake is told here, once, rather than by every worker
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from error
    url = url or f"sqlite:///{out / 'tuning.db'}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    prepare(curves, points, url, name, out)
    drain(curves, url, name, out, workers, data_dir, told)
    if search == "staged":
        while running(curves, url, name):  # elsewhere: which step size is best is not known yet
            time.sleep(1.0)
            prepare(curves, points, url, name, out)
            drain(curves, url, name, out, workers, data_dir, told)
        found = results(curves, url, name)
        others = {
            curve: second_stage(base.optimizer, best_step_size(base.optimizer, found[curve]["trials"]))
            for curve, base in curves.items()
        }
        prepare(curves, others, url, name, out)
        drain(curves, url, name, out, workers, data_dir, told)
    return results(curves, url, name)


def drain(
    curves: Curves,
    url: str,
    name: str,
    out: Path,
    workers: int,
    data_dir: Path | None,
    told: Callable[[dict[str, int]], None] | None,
) -> None:
    """Work until no point is waiting, in processes that save where they are when interrupted."""
    context = mp.get_context("spawn")
    stop = context.Event()
    arguments = ({curve: base.to_json() for curve, base in curves.items()}, url, name, out, data_dir, stop)
    processes = [context.Process(target=work, args=arguments, daemon=True) for _ in range(workers)]
    with interrupts_noted() as interrupted:
        for process in processes:
            process.start()
        asked = -ASK_EVERY
        while alive := [process for process in processes if process.is_alive()]:
            if interrupted.is_set():
                stop.set()
            elif told is not None and time.monotonic() - asked > ASK_EVERY:
                told(finished_counts(curves, url, name))
                asked = time.monotonic()
            alive[0].join(0.5)
        if told is not None:
            told(finished_counts(curves, url, name))
    if interrupted.is_set():
        raise KeyboardInterrupt
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise UserError(f"{len(failed)} of {workers} workers failed; run the same command again to go on")
