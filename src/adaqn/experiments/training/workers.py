"""Processes that make one run after the other. One that dies takes its run with it, and no other."""

from __future__ import annotations

import multiprocessing as mp
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError, told
from adaqn.experiments.training.claims import BusyError, ClaimLostError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.interrupts import end_with_parent, interrupts_noted
from adaqn.experiments.training.opening import run_one
from adaqn.experiments.training.run import Progress
from adaqn.experiments.training.storage import warnings_kept

REPORT_EVERY = 0.2
"""Seconds between two messages of a worker about its progress."""
MOST_WORKERS = 256
"""Each is a process with torch in it, of several hundred megabytes."""
FINISHED, STOPPED, BUSY, FAILED, DIED = "finished", "stopped", "busy", "failed", "died"
CONTEXT = mp.get_context("spawn")


@dataclass(frozen=True)
class Ended:
    """What became of a run: it is finished, or was stopped and saved; somebody else has it; it failed, or died."""

    how: str
    error: Exception | None = None


@dataclass(frozen=True)
class Asked:
    """A run to be made."""

    config: dict[str, Any]
    folder: Path
    data_dir: Path | None


class Workers:
    """So many of them, started when they are first needed."""

    def __init__(self, count: int, data_dir: Path | None, interrupted: threading.Event) -> None:
        self.count, self.data_dir, self.interrupted = count, data_dir, interrupted
        self.at_work: dict[Path, Connection] = {}
        self._idle: list[Connection] = []

    @property
    def free(self) -> int:
        return self.count - len(self.at_work)

    def start(self, config: RunConfig, folder: Path) -> None:
        """One of those that are free makes that run."""
        asked = Asked(config.to_json(), folder, self.data_dir)
        while self._idle:
            line = self._idle.pop()
            with suppress(OSError):  # killed while it had nothing to do
                line.send(asked)
                self.at_work[folder] = line
                return
        self.at_work[folder] = line = _new_worker()
        line.send(asked)

    def stop(self, folder: Path) -> None:
        """Its run is saved at the next step; that it has ended will be told."""
        with suppress(OSError):  # it has just died
            self.at_work[folder].send(None)

    def told(self, seconds: float) -> list[tuple[Path, Progress | Ended]]:
        """What they said since, after waiting so long for a first word."""
        folders = {line: folder for folder, line in self.at_work.items()}
        found: list[tuple[Path, Progress | Ended]] = []
        for line in wait(list(folders), seconds) if folders else ():
            assert isinstance(line, Connection)
            found += self._words(folders[line], line)
        return found

    def _words(self, folder: Path, line: Connection) -> Iterator[tuple[Path, Progress | Ended]]:
        try:
            while line.poll():
                word = line.recv()
                yield folder, word
                if isinstance(word, Ended):
                    del self.at_work[folder]
                    self._idle.append(line)
                    return
        except (EOFError, OSError):
            del self.at_work[folder]
            yield folder, Ended(DIED)

    def check_interrupt(self) -> None:
        if self.interrupted.is_set():
            raise KeyboardInterrupt

    def close(self) -> None:
        """All runs are stopped and saved."""
        for folder in self.at_work:
            self.stop(folder)
        while self.at_work:
            self.told(1.0)
        for line in self._idle:
            line.close()  # which ends the process behind it


def check_workers(count: int) -> int:
    """The number of processes, once it is one that a machine can start."""
    if not 1 <= count <= MOST_WORKERS:
        raise UserError(f"workers must be at least 1 and at most {MOST_WORKERS}, got {count}")
    return count


@contextmanager
def started_workers(count: int, data_dir: Path | None) -> Iterator[Workers]:
    """Within the block they work; however it is left, each saves where it is. A batch system ends it by SIGTERM."""
    with interrupts_noted(signal.SIGTERM) as interrupted:
        workers = Workers(check_workers(count), data_dir, interrupted)
        try:
            yield workers
        finally:
            workers.close()


def _new_worker() -> Connection:
    ours, theirs = CONTEXT.Pipe()
    CONTEXT.Process(target=_serve, args=(theirs,), daemon=True).start()
    theirs.close()
    return ours


def _serve(line: Connection) -> None:
    # Ctrl-C reaches every process of the terminal; the parent tells the workers to stop in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with suppress(EOFError, OSError):
        while True:
            asked = line.recv()
            if asked is not None:  # to be stopped, when the run had just ended
                line.send(outcome(asked, line))


def outcome(asked: Asked, line: Any) -> Ended:
    """Make that run, and tell of it on the line; what comes from there is to stop."""
    said = 0.0

    def listener(progress: Progress) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said > REPORT_EVERY or progress.step == progress.steps:
            said = now
            line.send(progress)
            if line.poll() and line.recv() is None and progress.step < progress.steps:
                raise KeyboardInterrupt

    try:
        with warnings_kept(asked.folder):
            run_one(RunConfig.from_json(asked.config), asked.folder, asked.data_dir, listener)
        return Ended(FINISHED)
    except KeyboardInterrupt:
        return Ended(STOPPED)
    except (BusyError, ClaimLostError):
        return Ended(BUSY)
    except Exception as error:
        line_about = told(error)
        return Ended(FAILED, RuntimeError(traceback.format_exc()) if line_about is None else UserError(line_about))
