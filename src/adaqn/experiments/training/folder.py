"""The folder of a run: which files it has, who may work in it, and what is known of it once it is finished."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from adaqn import QuasiNewton
from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.storage import read_json, read_lines, write_json
from adaqn.explain.fullbatch import WholeRecord, whole_record_of
from adaqn.explain.record import Record, record_of
from adaqn.fullbatch.optimizer import WholeGradient

CONFIG, METRICS, CHECKPOINT, RESULT = "config.json", "metrics.jsonl", "checkpoint.pt", "result.json"
CYCLES = "cycles.json"
"""The last cycles, of which an explanation is made."""
LOCK = "run.lock"
T = TypeVar("T")
RESULT_ENTRIES = {"config", "steps", "seconds", "unit", "data_sha256", "final", "best"}
METRIC_ENTRIES = {"step", "epoch", "seconds", "valid_loss", "test_loss"}


@dataclass(frozen=True)
class Finished:
    """A run that reached its last step."""

    folder: Path
    result: dict[str, Any]
    metrics: list[dict[str, Any]]


def folder_name(config: RunConfig) -> str:
    """Readable, and different for runs that differ."""
    data = Path(config.data).stem if "/" in config.data or "." in config.data else config.data
    if config.problem is not None:
        data = config.problem if data == "embedded" else f"{config.problem}-{data}"
    parts = (config.task, data[:40], config.model, config.optimizer, f"seed{config.seed}", resolved(config).identity())
    return "-".join(parts)


def stored_config(folder: Path) -> RunConfig:
    """What the run in that folder was asked to be."""
    contents = read_json(folder / CONFIG)
    if not isinstance(contents, dict) or "run" not in contents:
        raise UserError(f"{folder / CONFIG} is damaged: it has no entry 'run'; it was left in place")
    return RunConfig.from_json(contents["run"])


def finished(folder: Path) -> Finished | None:
    if not (folder / RESULT).exists():
        return None
    result, metrics = read_json(folder / RESULT), read_lines(folder / METRICS)
    whole = isinstance(result, dict) and set(result) >= RESULT_ENTRIES and isinstance(result["final"], dict)
    if not whole or not metrics or not all(set(record) >= METRIC_ENTRIES for record in metrics):
        raise UserError(f"{folder / RESULT} or {folder / METRICS} is incomplete; delete the folder to run it anew")
    return Finished(folder, _with_nan(result), [_with_nan(record) for record in metrics])


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """Losses that were not finite are null in the files; numbers again here."""
    for name, value in record.items():
        if isinstance(value, dict) and name in ("final", "best"):
            record[name] = _with_nan(value)
        elif value is None and name.startswith(("valid_", "test_")):
            record[name] = math.nan
    return record


def check_data(done: Finished, config: RunConfig, data_dir: Path | None) -> None:
    """Files of the user's and the embedded text may have changed since the run was made."""
    if config.data in files.DATA_SETS or config.task in ("addition", "pinn"):
        return  # those are checked by their own sha256, or generated
    now = data_sha256(config, data_dir)
    if now != done.result["data_sha256"]:
        raise UserError(
            f"the run in {done.folder} was made with other data (sha256 {done.result['data_sha256'][:12]}, and now it "
            f"is {now[:12]}): choose another --out, or delete that folder"
        )


def data_sha256(config: RunConfig, data_dir: Path | None) -> str:
    c = config.complete()
    path = Path(c.data)
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    values = json.dumps(replace(c, seed=0, optimizer="adam", options={}).to_json())
    return _data_sha256(values, data_dir, changed)


@lru_cache(maxsize=16)
def _data_sha256(values: str, data_dir: Path | None, changed: int) -> str:
    return make_task(RunConfig.from_json(json.loads(values)), data_dir).sha256


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Two processes in one folder would spoil each other's files; the claim ends with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except OSError as error:  # a lock that is held is one too
        reason = "another process is at work there" if isinstance(error, Timeout) else error.strerror
        raise UserError(f"cannot work in {folder}: {reason}") from error
    try:
        yield
    finally:
        lock.release()


def keep_cycles(folder: Path, optimizer: Any) -> None:
    """Of an optimizer that can explain itself; nothing for others."""
    if isinstance(optimizer, QuasiNewton):
        write_json(folder / CYCLES, record_of(optimizer).to_json())
    elif isinstance(optimizer, WholeGradient):
        write_json(folder / CYCLES, whole_record_of(optimizer).to_json())


def kept_cycles(folder: Path) -> Record:
    return _kept(folder, Record.from_json)


def kept_iterations(folder: Path) -> WholeRecord:
    """The same of an optimizer for whole gradients."""
    return _kept(folder, WholeRecord.from_json)


def _kept(folder: Path, read: Callable[[Any], T]) -> T:
    try:
        return read(read_json(folder / CYCLES))
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
