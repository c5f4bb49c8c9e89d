"""Several runs side by side in processes of their own; finished ones are reused, killed ones resumed."""

from __future__ import annotations

import json
import math
import multiprocessing as mp
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import resolved
from adaqn.experiments.problems.tasks import make_task
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.interrupts import end_with_parent, interrupts_noted
from adaqn.experiments.training.run import CONFIG, METRICS, RESULT, Progress, Run
from adaqn.experiments.training.storage import read_json, read_lines, warnings_kept
from adaqn.experiments.training.team import ALONE, Team

LOCK = "run.lock"
RESULT_ENTRIES = {"config", "steps", "seconds", "unit", "data_sha256", "final", "best"}
METRIC_ENTRIES = {"step", "epoch", "seconds", "valid_loss", "test_loss"}
REPORT_EVERY = 0.2
"""Seconds between two messages of a worker about its progress."""


@dataclass(frozen=True)
class Finished:
    """A run that reached its last step."""

    folder: Path
    result: dict[str, Any]
    metrics: list[dict[str, Any]]


RunListener = Callable[[int, Progress], None]


def folder_name(config: RunConfig) -> str:
    """Readable, and different for runs that differ."""
    data = Path(config.data).stem if "/" in config.data or "." in config.data else config.data
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
    if config.data in files.DATA_SETS or config.task == "addition":
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


def run_one(
    config: RunConfig,
    folder: Path,
    data_dir: Path | None = None,
    listener: Callable[[Progress], None] | None = None,
    team: Team = ALONE,
) -> Finished:
    """Train in that folder; a run that is there already is finished or reused."""
    done, is_begun = finished(folder), (folder / CONFIG).exists()
    team.wait()  # all have looked before the first one writes
    if done is None:
        with claimed(folder) if team.writes else nullcontext():
            run = Run(config, folder, data_dir, team)
            if is_begun:
                run.resume()
            elif team.writes:
                run.begin()
            run.train(listener)
        team.wait()
        done = finished(folder)
        assert done is not None
        return done
    check_data(done, config, data_dir)
    if listener is not None:
        listener(Progress(done.result["steps"], done.result["steps"], None))
    return done


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


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    workers: int,
    data_dir: Path | None = None,
    listener: RunListener | None = None,
) -> list[Finished]:
    """All runs, so many at a time; in the order of ``configs``."""
    if workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    folders = [root / folder_name(config) for config in configs]
    context = mp.get_context("spawn")
    with started(SyncManager(ctx=context)) as manager:
        messages = manager.Queue()
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_as_worker)
        stop = manager.Event()
        try:
            with interrupts_noted() as interrupted:
                futures = [
                    pool.submit(_work, index, config.to_json(), folder, data_dir, messages, stop)
                    for index, (config, folder) in enumerate(zip(configs, folders, strict=True))
                ]
                _listen(futures, messages, listener, interrupted)
                return [future.result() for future in futures]
        except BaseException:
            stop.set()  # the workers save where they are
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def started(manager: SyncManager) -> SyncManager:
    manager.start(initializer=end_with_parent)
    return manager


def _as_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent tells the workers to stop in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _listen(
    futures: Sequence[Future[Finished]], messages: Any, listener: RunListener | None, interrupted: threading.Event
) -> None:
    while True:
        if interrupted.is_set():
            raise KeyboardInterrupt
        running = any(not future.done() for future in futures)
        try:
            while True:
                index, progress = messages.get(timeout=0.1 if running else 0.0)
                if listener is not None:
                    listener(index, progress)
        except queue.Empty:
            pass
        for future in futures:
            if future.done() and future.exception() is not None:
                future.result()
        if not running:
            return


def _work(
    index: int, values: dict[str, Any], folder: Path, data_dir: Path | None, messages: Any, stop: Any
) -> Finished:
    told = 0.0

    def listener(progress: Progress) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > REPORT_EVERY or progress.step == progress.steps:
            told = now
            messages.put((index, progress))
            if stop.is_set():
                raise KeyboardInterrupt

    try:
        with warnings_kept(folder):
            return run_one(RunConfig.from_json(values), folder, data_dir, listener)
    except KeyboardInterrupt:
        raise UserError(f"stopped; {folder} was saved and can be resumed") from None
