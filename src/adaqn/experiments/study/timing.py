"""Milliseconds of a step of every method of a cell, measured side by side.

Runs of a study are made on different days beside other work, so their own clocks compare nothing. Here all methods
take turns in one process, some steps each, so that whatever disturbs the machine disturbs them alike; the median
of the turns counts. Time to a loss is then steps to it times this.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.study.plan import Cell
from adaqn.experiments.study.rows import Row
from adaqn.experiments.training.run import Run, subnormals_flushed
from adaqn.experiments.training.storage import read_json, write_json

WARM_UP = 120
"""Steps before the first turn: memories are full, bases are made."""
TURN = 20
"""Steps of a turn: whole cycles, and whole intervals between two refreshments of a basis."""
TURNS = 7


def measure(cell: Cell, folder: Path, data_dir: Path | None = None) -> dict[str, Any]:
    """Time every method at its best step size, and write ``timing.json``."""
    runs: dict[str, Run] = {}
    turns: dict[str, list[float]] = {method: [] for method in cell.methods}
    with subnormals_flushed():  # as in training
        for method in cell.methods:
            row = Row(cell, method, folder)
            runs[method] = Run(replace(row.base, lr=row.best_lr() or row.default, average=None), None, data_dir)
            for _ in range(WARM_UP):
                runs[method].advance()
        for _ in range(TURNS):
            for method, run in runs.items():
                start = time.perf_counter()
                for _ in range(TURN):
                    run.advance()
                turns[method].append((time.perf_counter() - start) / TURN * 1e3)
    said = {
        "threads": cell.base.threads,
        "steps": TURN * TURNS,
        "milliseconds": {
            method: {
                "median": round(statistics.median(times), 3),
                "low": round(min(times), 3),
                "high": round(max(times), 3),
            }
            for method, times in turns.items()
        },
    }
    path = timing_file(cell, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, said)
    return said


def timing_file(cell: Cell, folder: Path) -> Path:
    return folder / cell.name / "timing.json"


def known_times(cell: Cell, folder: Path) -> dict[str, float]:
    """Method → milliseconds of a step; empty where none were measured."""
    path = timing_file(cell, folder)
    if not path.exists():
        return {}
    said = read_json(path)
    try:
        return {method: float(times["median"]) for method, times in said["milliseconds"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: it has no times; delete it and run adaqn study --time") from error
