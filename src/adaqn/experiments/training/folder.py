"""The last cycles of a run, in its folder: what an explanation of it is made from."""

from __future__ import annotations

from pathlib import Path

from adaqn.experiments.errors import UserError
from adaqn.experiments.training.storage import read_json, write_json
from adaqn.optim.quasi_newton import QuasiNewton
from adaqn.optim.record import Record, record_of

CYCLES = "cycles.json"


def keep_cycles(folder: Path, optimizer: QuasiNewton) -> None:
    write_json(folder / CYCLES, record_of(optimizer).to_json())


def kept_cycles(folder: Path) -> Record:
    try:
        return Record.from_json(read_json(folder / CYCLES))
    except ValueError as error:
        raise UserError(
            f"{folder / CYCLES} is damaged, or of another version: {error}; it was left in place"
        ) from error


def recall_cycles(folder: Path, optimizer: QuasiNewton) -> None:
    """Those up to the checkpoint that was loaded; the file may know of later ones, which will be made again."""
    try:
        known = kept_cycles(folder).cycles
    except UserError:
        return  # an explanation is no reason not to go on
    optimizer.recent.extend(cycle for cycle in known if cycle.cycle <= optimizer.stats.cycles)
