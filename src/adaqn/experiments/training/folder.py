"""The folder of a run: which files it has, who may work in it, and what is known of it once it is finished."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.reading import LARGEST_JSON, content, is_there, read_json, read_lines
from adaqn.experiments.schema import count, loss, number, record, shown, text
from adaqn.experiments.training.claims import BusyError, Claim, ClaimLostError, busy, ruling, take
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.memory import check_run
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.storage import WARNINGS, make_folder

CONFIG, METRICS, CHECKPOINT, RESULT = "config.json", "metrics.jsonl", "checkpoint.pt", "result.json"
CYCLES = "cycles.json"
"""The last cycles, of which an explanation is made."""
METRICS_CHECKSUM = "metrics_sha256"
"""Entry of a result: the checksum of ``metrics.jsonl``, which has none of its own while it grows."""

SECONDS = number(0.0, 1e15)
MEASUREMENT = record(
    {"step": count, "epoch": SECONDS, "seconds": SECONDS, "valid_loss": loss, "test_loss": loss},
    {
        **dict.fromkeys(("train_loss", "test_error", "test_accuracy", "average_memory"), loss),
        **dict.fromkeys(("averaged_valid_loss", "averaged_test_loss"), loss),
        **dict.fromkeys(("cycles", "stored", "skipped", "rejected"), count),
    },
)
"""A line of ``metrics.jsonl``."""
DONE = record(
    {
        **dict.fromkeys(("unit", "data_sha256"), text),
        **{"config": record({"seed": count}), "steps": count, "seconds": SECONDS},
        **dict.fromkeys(("final", "best"), MEASUREMENT),
    },
    {"identity": text, "parameters": count, "stopped_at": count, "noise": loss, METRICS_CHECKSUM: text},
)
"""A ``result.json``."""
ASKED = record({"run": record({})}, {"made_with": record({}, {"identity": text})})
"""A ``config.json``."""


@dataclass(frozen=True)
class Finished:
    """A run that reached its last step, or one that is on its way, as far as it was measured."""

    folder: Path
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    share: float = 1.0
    """Of its steps."""


def folder_name(config: RunConfig) -> str:
    """Readable, and different for runs that differ."""
    data = Path(config.data).stem if "/" in config.data or "." in config.data else config.data
    if config.problem is not None:
        data = config.problem if data == "embedded" else f"{config.problem}-{data}"
    parts = (config.task, data[:40], config.model, config.optimizer, f"seed{config.seed}", resolved(config).identity())
    return "-".join(parts)


def stored_config(folder: Path) -> RunConfig:
    """What the run in that folder was asked to be."""
    return RunConfig.from_json(read_json(folder / CONFIG, ASKED)["run"], folder / CONFIG)


def identities(config: RunConfig) -> tuple[str, ...]:
    """What the files of that run may say that they are of; the first is what this version says."""
    return config.identity(), config.identity(as_written=True)


def refuse_other(path: Path, identity: object, ours: Sequence[str], what: str = "identity") -> None:
    """An error for a file of another run, which somebody has put there."""
    if identity not in ours:
        raise UserError(
            f"{path} is of another run: its {what} is {shown(identity)}, and this run's is {shown(ours[0])}; it was "
            "left in place. Put the file of this run there, or delete it"
        )


def known_identities(folder: Path) -> list[str]:
    """What files may say that are of the run in that folder."""
    asked = read_json(folder / CONFIG, ASKED)
    config = RunConfig.from_json(asked["run"], folder / CONFIG)
    known = [*identities(config), *filter(None, [asked.get("made_with", {}).get("identity")])]
    with suppress(UserError):  # one that was begun by a version with other presets, and made by a later one
        known += identities(resolved(config))
    return known


def check_of_run(path: Path, identity: object) -> None:
    """Is a file of the run in its folder, by what it says?"""
    try:
        known = known_identities(path.parent)
    except UserError:
        return  # a configuration that is lost or damaged does not tell, and who needs it says so
    refuse_other(path, identity, known)


def finished(folder: Path) -> Finished | None:
    if not is_there(folder / RESULT):
        return None
    result = read_json(folder / RESULT, DONE)
    if "identity" in result:
        check_of_run(folder / RESULT, result["identity"])
    metrics = read_lines(folder / METRICS, MEASUREMENT)
    known = result.pop(METRICS_CHECKSUM, None)
    if not metrics or (known is not None and known != sha256(content(folder / METRICS, LARGEST_JSON))):
        raise UserError(
            f"{folder / METRICS} is damaged: it is not what the run has measured. Delete {folder / RESULT}, and "
            "'adaqn train --resume' makes both again from the checkpoint"
        )
    return Finished(folder, with_nan(result), [with_nan(record) for record in metrics])


def on_its_way(folder: Path) -> Finished | None:
    """A run that is not finished, as far as it was measured; ``None`` if that is nothing."""
    if not is_there(folder / CONFIG):
        return None
    asked = read_json(folder / CONFIG, ASKED)
    config = RunConfig.from_json(asked["run"], folder / CONFIG)
    metrics = [with_nan(record) for record in read_lines(folder / METRICS, MEASUREMENT)]
    if not metrics:
        return None
    last = metrics[-1]
    share = last["step"] / config.steps if config.steps else last["epoch"] / config.epochs
    result = {
        "config": config.to_json(), "steps": last["step"], "seconds": last["seconds"], "final": last,
        "unit": asked.get("made_with", {}).get("unit", ""),
    }  # fmt: skip
    return Finished(folder, result, metrics, min(share, 1.0))


def sha256(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """Losses that were not finite are null in the files; numbers again here."""
    for name, value in record.items():
        if isinstance(value, dict) and name in ("final", "best"):
            record[name] = with_nan(value)
        elif value is None and name.startswith(("valid_", "test_", "averaged_")):
            record[name] = math.nan
    return record


def check_data(done: Finished, config: RunConfig, data_dir: Path | None) -> None:
    """Files of the user's and the embedded text may have changed since the run was made, or it may be another run."""
    if "identity" in done.result:
        ours = [*identities(resolved(config)), *identities(config)]
        refuse_other(done.folder / RESULT, done.result["identity"], ours)
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
    check_run(c)
    path = Path(c.data)
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    values = json.dumps(replace(c, seed=0, optimizer="adam", options={}).to_json())
    return _data_sha256(values, data_dir, changed)


@lru_cache(maxsize=16)
def _data_sha256(values: str, data_dir: Path | None, changed: int) -> str:
    return make_task(RunConfig.from_json(json.loads(values)), data_dir).sha256


@contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Two processes in one folder would spoil each other's files; the claim ends with the process, however it ends.

    Left by an error without a run in it, the folder is as it was before: not made, and without a claim.
    """
    made: list[Path] = []
    try:
        made = make_folder(folder)
        claim = take(folder)
        if claim is None:
            who = busy(folder, time.time()) or "another process"
            raise BusyError(
                f"cannot work in {folder}: {who} is at work there; if you know that it is not, delete {ruling(folder)}"
            )
    except (OSError, ValueError) as error:  # a null byte in the name is the latter
        _leave(made)
        raise UserError(f"cannot work in {folder}: {getattr(error, 'strerror', error)}") from error
    try:
        for path in folder.glob(".*.tmp"):  # of writers that were killed
            path.unlink(missing_ok=True)
        yield claim
    except Exception:
        if not (folder / CONFIG).exists():
            claim.end(forget=True)
            _leave(made)
        raise
    finally:
        claim.end(forget=(folder / RESULT).exists())


def _leave(made: list[Path]) -> None:
    with suppress(OSError, ValueError):
        for path in reversed(made):  # one that somebody else works in by now is not empty, and stays
            path.rmdir()


@contextmanager
def taken_back(folder: Path, has_stepped: Callable[[], bool]) -> Iterator[None]:
    """A new run that fails before its first step is taken back: it would only block the corrected command."""
    try:
        yield
    except ClaimLostError:  # it is another's run by now
        raise
    except Exception:
        if not has_stepped():
            with suppress(OSError):
                for name in (METRICS, CYCLES, WARNINGS, CONFIG):
                    (folder / name).unlink(missing_ok=True)
        raise
