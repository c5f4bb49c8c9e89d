"""Which class a task is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adaqn.experiments.problems.fit import FITS
from adaqn.experiments.problems.pinn import Physics
from adaqn.experiments.problems.tasks import Addition, Digits, LanguageModel, Task
from adaqn.experiments.training.config import RunConfig

KINDS: dict[str, Callable[[RunConfig, Path | None], Task]] = {
    "char-lm": LanguageModel,
    "word-lm": LanguageModel,
    "pixel-mnist": Digits,
    "mlp": Digits,
    "addition": Addition,
    "pinn": Physics,
}


def make_task(config: RunConfig, data_dir: Path | None = None) -> Task:
    """The task of a complete configuration."""
    if config.task == "fit":
        assert config.problem is not None
        return FITS[config.problem](config, data_dir)
    return KINDS[config.task](config, data_dir)
