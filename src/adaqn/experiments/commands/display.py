"""Progress on the screen: bars with losses and the time that is left, and the hours before anything starts."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    track,
)
from rich.table import Table

from adaqn.experiments.training.pace import Left, Pace
from adaqn.experiments.training.parallel import Job
from adaqn.experiments.training.run import Progress as RunProgress
from adaqn.experiments.training.timing import Cost

TELL_EVERY, WRITE_FIRST, WRITE_EVERY = 5.0, 20.0, 300.0
"""Seconds between two looks at what is left; to the first line about it, where there is no terminal; to the next."""


def loss_text(loss: float) -> str:
    """Three decimals, or as a power of ten where they would say nothing.

    >>> loss_text(1.2345), loss_text(0.00012)
    ('1.234', '1.20e-04')
    """
    return f"{loss:.3f}" if abs(loss) >= 0.01 or loss == 0.0 else f"{loss:.2e}"


@contextmanager
def shown_from_the_first_word(bars: Progress) -> Iterator[Progress]:
    """Bars that appear with ``start()``: what is refused before that leaves no empty bar behind."""
    try:
        yield bars
    finally:
        if bars.live.is_started:
            bars.stop()


class Lines:
    """Progress where there is no terminal, in a pipe or a log: a line for each tenth, as soon as it is reached."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.reached: dict[object, int] = {}

    def tell(self, key: object, share: float, line: str) -> None:
        tenth = int(10 * share)
        if tenth > self.reached.get(key, 0):
            self.reached[key] = tenth
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


WIDTH = 180
"""Columns of a table that goes to a file or a pipe: nobody's screen limits it."""


def screen(*, quiet: bool = False) -> Console:
    """For tables: as wide as the terminal, and wide enough where there is none."""
    return Console(quiet=quiet, width=None if sys.stdout.isatty() else WIDTH)


@contextmanager
def progress_bars(labels: Sequence[str], *, quiet: bool = False) -> Iterator[Callable[[int, RunProgress], None]]:
    """Yields a function to tell (which run, how far)."""
    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        lines = Lines(console)

        def told_in_lines(index: int, progress: RunProgress) -> None:
            loss = "" if progress.loss is None else f", training loss {loss_text(progress.loss)}"
            share = progress.step / progress.steps
            lines.tell(index, share, f"{labels[index]}: {progress.step} of {progress.steps}{loss}")

        yield told_in_lines
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("training loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with shown_from_the_first_word(Progress(*columns, console=console, refresh_per_second=4)) as bars:
        tasks = [bars.add_task(label, total=None, loss="  –  ") for label in labels]

        def told(index: int, progress: RunProgress) -> None:
            bars.start()
            bars.update(tasks[index], completed=progress.step, total=progress.steps)
            if progress.loss is not None:
                bars.update(tasks[index], loss=loss_text(progress.loss))

        yield told


@contextmanager
def count_bars(labels: Sequence[str], total: int, *, quiet: bool = False) -> Iterator[Callable[[dict[str, int]], None]]:
    """Yields a function to tell how many runs of each are finished."""
    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        lines = Lines(console)

        def told_in_lines(counts: dict[str, int]) -> None:
            for label, count in counts.items():
                lines.tell(label, count / total, f"{label}: {count} of {total} runs")

        yield told_in_lines
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, refresh_per_second=4)
    with shown_from_the_first_word(progress) as bars:
        tasks = {label: bars.add_task(label, total=total) for label in labels}

        def told(counts: dict[str, int]) -> None:
            bars.start()
            for label, count in counts.items():
                bars.update(tasks[label], completed=count)

        yield told


@contextmanager
def figure_bar(total: int, *, quiet: bool = False) -> Iterator[Callable[[int, RunProgress], None]]:
    """One bar for many runs: yields a function to tell (which run, how far)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    done: dict[int, float] = {}
    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        lines = Lines(console)

        def told_in_lines(index: int, progress: RunProgress) -> None:
            done[index] = progress.step / progress.steps
            finished = sum(share >= 1.0 for share in done.values())
            share = sum(done.values()) / total
            lines.tell("all", share, f"{100 * share:.0f} % of {total} runs, {finished} finished")

        yield told_in_lines
        return
    progress = Progress(*columns, console=console, refresh_per_second=4)
    with shown_from_the_first_word(progress) as bars:
        bar = bars.add_task(f"{total} runs", total=float(total), said="")

        def told(index: int, progress: RunProgress) -> None:
            bars.start()
            done[index] = progress.step / progress.steps
            bars.update(bar, completed=sum(done.values()))
            if progress.loss is not None:
                finished = sum(share >= 1.0 for share in done.values())
                bars.update(bar, said=f"{finished} finished, loss of the latest {loss_text(progress.loss)}")

        yield told


def duration(seconds: float) -> str:
    """In words.

    >>> duration(40), duration(4000), duration(400000)
    ('40 s', '1 h 07 min', '4 days 15 h')
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if hours < 48:
        return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{hours // 24} days {hours % 24} h"


class WorkBar:
    """How far many runs are and how long they will take, from the seconds that their like took so far."""

    def __init__(self, left: Callable[[], list[Left]], workers: int, until: float, console: Console) -> None:
        self.left, self.workers, self.until, self.console = left, workers, until, console
        self.pace = Pace()
        self.runs = sum(part.runs for part in left())
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        self.bars = Progress(*columns, console=console, refresh_per_second=4)
        self.bar = self.bars.add_task("", total=1.0)
        self._begun = self._told = time.monotonic()
        self._written = self._begun + WRITE_FIRST - WRITE_EVERY

    def told(self, job: Job, progress: RunProgress) -> None:
        """Of one run."""
        self.pace.note(job, progress)
        now = time.monotonic()
        if now - self._told < TELL_EVERY:
            return
        self._told = now
        line, share = self._said(now)
        if self.console.is_terminal:
            self.bars.start()
            self.bars.update(self.bar, completed=share, description=line)
        elif now - self._written > WRITE_EVERY:
            self._written = now
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def time_left(self) -> str:
        """In words; nothing if no run was seen at work."""
        seconds, is_all = self.pace.seconds(self.left())
        return f"{'' if is_all else 'more than '}{duration(seconds / self.workers)}" if seconds else ""

    def _said(self, now: float) -> tuple[str, float]:
        left = self.left()
        seconds, _ = self.pace.seconds(left)
        spent = (now - self._begun) * self.workers
        done = self.runs - sum(part.runs for part in left)
        line = f"{done} of {self.runs} runs"
        if time_left := self.time_left():
            line += f", {time_left} left"
        if self.until < math.inf:
            line += f", the budget ends in {duration(max(0.0, self.until - now))}"
        return line, spent / (spent + seconds)


@contextmanager
def work_bar(left: Callable[[], list[Left]], workers: int, until: float, *, quiet: bool = False) -> Iterator[WorkBar]:
    """Shown from the first word of a worker on."""
    bar = WorkBar(left, workers, until, Console(stderr=True, quiet=quiet))
    with shown_from_the_first_word(bar.bars):
        yield bar


def say(line: str, quiet: bool) -> None:
    if not quiet:
        Console().print(line, highlight=False, markup=False, soft_wrap=True)


def timed(costs: Iterable[Cost], total: int, *, quiet: bool = False) -> list[Cost]:
    """One after the other: a few steps of a large model take a minute."""
    return list(track(costs, "timing a few steps of each curve", total, console=Console(stderr=True, quiet=quiet)))


def print_costs(costs: Sequence[Cost], workers: int, console: Console) -> None:
    """The hours, before anything starts."""
    table = Table("panel", "curve", "runs left, at most", "ms per step", "seconds per run", "hours")
    for cost in costs:
        step = "–" if cost.seconds_per_step is None else f"{1e3 * cost.seconds_per_step:.1f}"
        table.add_row(cost.panel, cost.curve, str(cost.runs), step, f"{cost.seconds_per_run:.0f}", hours(cost.hours))
    console.print(table)
    total = sum(cost.hours for cost in costs)
    console.print(f"{hours(total)} hours, one run at a time; at best {hours(total / workers)} with {workers} at a time")


def hours(count: float) -> str:
    """In two digits.

    >>> hours(3.14159), hours(0.00002), hours(0.0)
    ('3.14', '<0.01', '0.00')
    """
    return "<0.01" if 0.0 < count < 0.01 else f"{count:.2f}"
