"""The step size over a run: constant or a cosine down to zero, after a rise at the start."""

from __future__ import annotations

import math
from typing import Any

from adaqn.experiments.training.config import RunConfig

SCALED = ("lr", "adamw_lr")
"""Entries of a parameter group that are step sizes."""


def factor(config: RunConfig, step: int, total: int) -> float:
    """By which the step size of that step, counted from 0, is multiplied.

    >>> cosine = RunConfig(schedule="cosine", warm_up=2)
    >>> [round(factor(cosine, step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < config.warm_up:
        return (step + 1) / config.warm_up
    if config.schedule == "constant":
        return 1.0
    share = (step - config.warm_up) / max(1, total - config.warm_up)
    return 0.5 * (1.0 + math.cos(math.pi * share))


class Schedule:
    """Of one optimizer: a function of the step alone, so that a resumed run needs no memory of it."""

    def __init__(self, config: RunConfig, groups: list[dict[str, Any]], total: int) -> None:
        self.config, self.total = config, total
        self.full = [{name: group[name] for name in SCALED if name in group} for group in groups]

    @property
    def changes(self) -> bool:
        return self.config.schedule != "constant" or self.config.warm_up > 0

    def set(self, groups: list[dict[str, Any]], step: int) -> None:
        if self.changes:
            for group, full in zip(groups, self.full, strict=True):
                if "lr" in full:
                    group["initial_lr"] = full["lr"]  # as torch's schedulers do: an explanation speaks of that one
                group.update({name: lr * factor(self.config, step, self.total) for name, lr in full.items()})
