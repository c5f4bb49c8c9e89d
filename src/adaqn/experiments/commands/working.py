"""Many runs within a budget, on the screen: what ``adaqn figure`` and ``adaqn study`` have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from adaqn.experiments.commands.display import say, work_bar
from adaqn.experiments.errors import UserError
from adaqn.experiments.training.pace import Left
from adaqn.experiments.training.parallel import Job, Outcome, deadline, work_off


class Work(Protocol):
    """What is to do."""

    def due(self) -> list[Job]:
        """What may be run now, most useful first."""

    def left(self) -> list[Left]:
        """All that is to do, at most."""


def run_what_fits(
    work: Work,
    workers: int,
    data_dir: Path | None,
    hours: float | None,
    *,
    quiet: bool,
    keep: Callable[[], object] | None = None,
) -> Outcome | None:
    """Make what is due until it is done or the time is over; ``None`` if Ctrl-C ended it.

    With a budget a run that fails stops no other: who comes back after a night wants to see what the others did.
    ``keep`` is called whenever what is due has changed, so that a kill leaves the results of all finished runs.
    """
    until, before = deadline(hours), [job.folder for job in work.due()]

    def due() -> list[Job]:
        nonlocal before
        jobs = work.due()
        folders = [job.folder for job in jobs]
        if keep is not None and folders != before:
            before = folders
            keep()
        return jobs

    with work_bar(work.left, workers, until, quiet=quiet) as bar:
        try:
            outcome = work_off(due, workers, data_dir, until=until, listener=bar.told, keep_going=hours is not None)
        except KeyboardInterrupt:
            return None
    outcome.left = bar.time_left()
    return outcome


def tell_end(outcome: Outcome | None, work: Work, *, quiet: bool) -> None:
    """What is left, what failed; Ctrl-C is passed on."""
    if outcome is None:
        raise KeyboardInterrupt
    if outcome.failures:
        first = next(iter(outcome.failures.values()))
        raise UserError(f"{len(outcome.failures)} runs failed, the others are done; the first error: {first}")
    left = sum(part.runs for part in work.left())
    if not outcome.complete and left:
        runs = "one run is" if left == 1 else f"{left} runs are"
        long = f", {outcome.left}," if outcome.left else ""
        say(f"the budget is spent; {runs} left{long} and the same command continues", quiet)
