"""A run as the command that makes it again, and options as the command line writes and reads them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.options import own_options

NAMED = ("task", "data", "model", "optimizer", "lr", "options", "seed")
"""Settings that every command and table names; the others are named where they differ from the usual."""


def command(config: RunConfig, seeds: Sequence[int]) -> str:
    """The shell command that makes these runs again.

    >>> command(RunConfig(optimizer="adam", lr=0.01, hidden=20), [0, 1])
    'for seed in 0 1; do adaqn train --task char-lm --optimizer adam --lr 0.01 --hidden 20 --seed "$seed"; done'
    """
    words = ["adaqn", "train", "--task", config.task]
    for name in ("data", "model"):
        if getattr(config, name) != getattr(RunConfig(), name):
            words += [f"--{name}", getattr(config, name)]
    words += ["--optimizer", config.optimizer]
    words += [] if config.lr is None else ["--lr", repr(config.lr)]
    for name, value in sorted(own_options(config.optimizer, config.options).items()):
        words += ["--option", f"{name}={option_text(value)}"]
    usual = RunConfig(config.task, model=config.model).complete()
    for name in (f.name for f in fields(RunConfig) if f.name not in NAMED):
        value = getattr(config, name)
        if value is not None and value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    if len(seeds) == 1:
        return f"{shlex.join(words)} --seed {seeds[0]}"
    return f'for seed in {" ".join(map(str, seeds))}; do {shlex.join(words)} --seed "$seed"; done'


def option_text(value: Any) -> str:
    """As ``--option name=value`` reads it back: JSON, or bare text that is not JSON.

    >>> [option_text(value) for value in ("adam", "1", 0.5, None, True)]
    ['adam', '"1"', '0.5', 'null', 'true']
    """
    if isinstance(value, str):
        try:
            json.loads(value)
        except json.JSONDecodeError:
            return value
    return json.dumps(value)


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """name=value pairs; values are JSON where they can be, text otherwise.

    >>> parse_options(["cycle_length=10", "scaling=adam"])
    {'cycle_length': 10, 'scaling': 'adam'}
    """
    options = {}
    for item in given or []:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise UserError(f"an option is written name=value, got {item!r}")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options
