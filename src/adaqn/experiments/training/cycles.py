"""The last cycles of a run, of which an explanation is made: kept in its folder, and known again when it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from adaqn import QuasiNewton
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import read_json
from adaqn.experiments.schema import record, text
from adaqn.experiments.training.folder import CYCLES, check_of_run
from adaqn.experiments.training.storage import write_sealed
from adaqn.explain.fullbatch import WholeRecord, whole_record_of
from adaqn.explain.record import Record, record_of
from adaqn.fullbatch.optimizer import WholeGradient

T = TypeVar("T")
KEPT = record({}, {"identity": text})
"""A ``cycles.json``, as far as it is not the record of an optimizer."""


def keep_cycles(folder: Path, optimizer: Any, identity: str) -> None:
    """Of an optimizer that can explain itself; nothing for others."""
    if isinstance(optimizer, QuasiNewton):
        write_sealed(folder / CYCLES, {**record_of(optimizer).to_json(), "identity": identity})
    elif isinstance(optimizer, WholeGradient):
        write_sealed(folder / CYCLES, {**whole_record_of(optimizer).to_json(), "identity": identity})


def kept_cycles(folder: Path) -> Record:
    return _kept(folder, Record.from_json)


def kept_iterations(folder: Path) -> WholeRecord:
    """The same of an optimizer for whole gradients."""
    return _kept(folder, WholeRecord.from_json)


def _kept(folder: Path, read: Callable[[Any], T]) -> T:
    values = read_json(folder / CYCLES, KEPT)
    if "identity" in values:  # versions up to 0.2 did not say it
        check_of_run(folder / CYCLES, values.pop("identity"))
    try:
        return read(values)
    except ValueError as error:
        raise UserError(
            f"{folder / CYCLES} is damaged, or of another version: {error}; it was left in place"
        ) from error


def recall_cycles(folder: Path, optimizer: Any) -> None:
    """Those up to the checkpoint that was loaded; the file may know of later ones, which will be made again."""
    try:
        if isinstance(optimizer, QuasiNewton):
            cycles = kept_cycles(folder).cycles
            optimizer._recent.extend(cycle for cycle in cycles if cycle.cycle <= optimizer.stats.cycles)
        elif isinstance(optimizer, WholeGradient):
            recent = kept_iterations(folder).recent
            optimizer._recent.extend(event for event in recent if event.step <= optimizer.stats.iterations)
    except UserError:
        return  # an explanation is no reason not to go on
