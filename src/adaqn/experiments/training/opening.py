"""The run of a configuration, of the kind that its task needs, and made in a folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from adaqn.experiments.reading import is_there
from adaqn.experiments.training.allocation import keep_freed_memory
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, Finished, check_data, claimed, finished, taken_back
from adaqn.experiments.training.run import Progress, Run
from adaqn.experiments.training.team import ALONE, Team
from adaqn.experiments.training.whole import WholeRun
from adaqn.experiments.training.whole_settings import is_whole


def open_run(config: RunConfig, folder: Path | None = None, data_dir: Path | None = None, team: Team = ALONE) -> Run:
    """Counted in steps, or in evaluations where every batch is the whole one."""
    keep_freed_memory()
    kind = WholeRun if is_whole(config.task) else Run
    return kind(config, folder, data_dir, team)


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
        _make(open_run(config, folder, data_dir, team), is_begun, listener)  # what is refused here has touched nothing
        team.wait()
        done = finished(folder)
        assert done is not None
        return done
    check_data(done, config, data_dir)
    if listener is not None:
        listener(Progress(done.result["steps"], done.result["steps"], None))
    return done


def _make(run: Run, is_begun: bool, listener: Callable[[Progress], None] | None) -> None:
    assert run.folder is not None
    with claimed(run.folder) if run.team.writes else nullcontext() as run.claim:
        if run.team.count == 1:  # another process may have had it since we looked
            if finished(run.folder) is not None:
                return
            is_begun = is_there(run.folder / CONFIG)
        if is_begun:
            run.resume()
        elif run.team.writes:
            run.begin()
        is_new = run.team.writes and not is_begun
        with taken_back(run.folder, lambda: run.has_stepped) if is_new else nullcontext():
            if listener is not None:
                listener(Progress(run.step, run.total, None))  # from here on it is at work
            run.train(listener)
