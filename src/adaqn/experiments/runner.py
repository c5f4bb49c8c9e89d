"""Several runs side by side in processes of their own; finished ones are reused, killed ones resumed."""

from __future__ import annotations

import multiprocessing as mp
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaqn.experiments.config import RunConfig
from adaqn.experiments.errors import UserError
from adaqn.experiments.storage import read_json, read_lines, warnings_kept
from adaqn.experiments.training import CONFIG, METRICS, RESULT, Progress, Run

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
    parts = (config.task, data, config.model, config.optimizer, f"seed{config.seed}", config.complete().identity())
    return "-".join(parts)


def finished(folder: Path) -> Finished | None:
    if not (folder / RESULT).exists():
        return None
    return Finished(folder, read_json(folder / RESULT), read_lines(folder / METRICS))


def run_one(
    config: RunConfig, folder: Path, data_dir: Path | None = None, listener: Callable[[Progress], None] | None = None
) -> Finished:
    """Train in that folder; a run that is there already is finished or reused."""
    done = finished(folder)
    if done is None:
        run = Run(config, folder, data_dir)
        if (folder / CONFIG).exists():
            run.resume()
        else:
            run.begin()
        run.train(listener)
        done = finished(folder)
        assert done is not None
    elif listener is not None:
        listener(Progress(done.result["steps"], done.result["steps"], None))
    return done


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    workers: int,
    data_dir: Path | None = None,
    listener: RunListener | None = None,
) -> list[Finished]:
    """All runs, so many at a time; in the order of ``configs``."""
    folders = [root / folder_name(config) for config in configs]
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts)
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


def _ignore_interrupts() -> None:
    # Ctrl-C reaches every process of the terminal; the parent tells the workers to stop in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of raising in the middle of a conversation with another process or a database."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


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
