"""Several runs side by side in processes of their own; finished ones are reused, killed ones resumed."""

from __future__ import annotations

import multiprocessing as mp
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import is_there
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, Finished, check_data, claimed, finished, folder_name, taken_back
from adaqn.experiments.training.interrupts import end_with_parent, interrupts_noted
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.run import Progress
from adaqn.experiments.training.storage import warnings_kept
from adaqn.experiments.training.team import ALONE, Team

REPORT_EVERY = 0.2
"""Seconds between two messages of a worker about its progress."""


MOST_WORKERS = 256
"""Each is a process with torch in it, of several hundred megabytes."""
LOOK_EVERY = 0.2
"""Seconds between two looks for an interrupt."""
LOST = "a worker process was killed, perhaps for want of memory; run the same command again to go on"

RunListener = Callable[[int, Progress], None]


def run_one(
    config: RunConfig,
    folder: Path,
    data_dir: Path | None = None,
    listener: Callable[[Progress], None] | None = None,
    team: Team = ALONE,
) -> Finished:
    """Train in that folder; a run that is there already is finished or reused."""
    done, is_begun = finished(folder), is_there(folder / CONFIG)
    team.wait()  # all have looked before the first one writes
    if done is None:
        run = open_run(config, folder, data_dir, team)  # what is refused here has touched nothing
        with claimed(folder) if team.writes else nullcontext():
            if is_begun:
                run.resume()
            elif team.writes:
                run.begin()
            is_new = team.writes and not is_begun
            with taken_back(folder, lambda: run.has_stepped) if is_new else nullcontext():
                if listener is not None:
                    listener(Progress(run.step, run.total, None))  # from here on it is at work
                run.train(listener)
        team.wait()
        done = finished(folder)
        assert done is not None
        return done
    check_data(done, config, data_dir)
    if listener is not None:
        listener(Progress(done.result["steps"], done.result["steps"], None))
    return done


class Workers:
    """Processes at work: each makes one run after the other."""

    def __init__(
        self, count: int, pool: ProcessPoolExecutor, manager: SyncManager, interrupted: threading.Event
    ) -> None:
        self.count, self.pool, self.interrupted = count, pool, interrupted
        self.messages, self.stop = manager.Queue(), manager.Event()

    def submit(
        self, config: RunConfig, folder: Path, data_dir: Path | None, index: int | None = None
    ) -> Future[Finished]:
        """A run to be made; one with an index tells of its progress."""
        messages = None if index is None else self.messages
        return self.pool.submit(_work, index, config.to_json(), folder, data_dir, messages, self.stop)

    def finished(self, config: RunConfig, folder: Path, data_dir: Path | None) -> Finished:
        """A run to be waited for."""
        future = self.submit(config, folder, data_dir)
        while not wait([future], timeout=LOOK_EVERY).done:
            if self.interrupted.is_set():
                self.stop.set()
        try:
            return future.result()
        except BrokenProcessPool:
            raise UserError(LOST) from None

    def check_interrupt(self) -> None:
        if self.interrupted.is_set():
            raise KeyboardInterrupt


def check_workers(count: int) -> int:
    """The number of processes, once it is one that a machine can start."""
    if not 1 <= count <= MOST_WORKERS:
        raise UserError(f"workers must be at least 1 and at most {MOST_WORKERS}, got {count}")
    return count


@contextmanager
def started_workers(count: int) -> Iterator[Workers]:
    """Within the block they work; left by an exception or by Ctrl-C, each saves where it is."""
    check_workers(count)
    context = mp.get_context("spawn")
    with started(SyncManager(ctx=context)) as manager, interrupts_noted() as interrupted:
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_as_worker)
        workers = Workers(count, pool, manager, interrupted)
        try:
            yield workers
        except BaseException as error:
            workers.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise UserError(LOST) from None
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    workers: int,
    data_dir: Path | None = None,
    listener: RunListener | None = None,
) -> list[Finished]:
    """All runs, so many at a time; in the order of ``configs``."""
    folders = [root / folder_name(config) for config in configs]
    with started_workers(min(check_workers(workers), len(configs))) as team:
        pairs = zip(configs, folders, strict=True)
        futures = [team.submit(config, folder, data_dir, index) for index, (config, folder) in enumerate(pairs)]
        _listen(futures, team, listener)
        return [future.result() for future in futures]


def started(manager: SyncManager) -> SyncManager:
    manager.start(initializer=end_with_parent)
    return manager


def _as_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent tells the workers to stop in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _listen(futures: Sequence[Future[Finished]], team: Workers, listener: RunListener | None) -> None:
    while True:
        team.check_interrupt()
        running = any(not future.done() for future in futures)
        try:
            while True:
                index, progress = team.messages.get(timeout=0.1 if running else 0.0)
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
    index: int | None, values: dict[str, Any], folder: Path, data_dir: Path | None, messages: Any, stop: Any
) -> Finished:
    told = 0.0

    def listener(progress: Progress) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > REPORT_EVERY or progress.step == progress.steps:
            told = now
            if messages is not None:
                messages.put((index, progress))
            if stop.is_set():
                raise KeyboardInterrupt

    try:
        with warnings_kept(folder):
            return run_one(RunConfig.from_json(values), folder, data_dir, listener)
    except KeyboardInterrupt:
        raise UserError(f"stopped; {folder} was saved and can be resumed") from None
