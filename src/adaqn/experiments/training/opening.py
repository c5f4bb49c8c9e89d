"""The run of a configuration, of the kind that its task needs."""

from __future__ import annotations

from pathlib import Path

from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.run import Run
from adaqn.experiments.training.team import ALONE, Team
from adaqn.experiments.training.whole import WholeRun
from adaqn.experiments.training.whole_settings import is_whole


def open_run(config: RunConfig, folder: Path | None = None, data_dir: Path | None = None, team: Team = ALONE) -> Run:
    """Counted in steps, or in evaluations where every batch is the whole one."""
    kind = WholeRun if is_whole(config.task) else Run
    return kind(config, folder, data_dir, team)
