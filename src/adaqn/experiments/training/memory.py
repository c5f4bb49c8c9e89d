"""What a run needs at least, worked out from its configuration before anything of it is made."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.fit import COLUMNS, ROWS
from adaqn.experiments.problems.networks import CONV, TRANSFORMER
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.whole_settings import DTYPES
from adaqn.optim.memory import check_fits

GATES = {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4}
MATRICES = 12
"""Of a transformer's layer, hidden × hidden: four of its attention, eight of the net behind it."""
KERNEL = 9
"""Weights of a convolution between two channels."""
OBJECTS = 5_000
"""Bytes of a layer beside its weights: modules and parameters are objects."""
ADDITION_EXAMPLES = 10_000
BYTES = dict(zip(DTYPES, (4, 8), strict=True))


def check_run(config: RunConfig) -> None:
    """One line for a complete configuration that this machine cannot hold."""
    _check(needed(config), config, f"a run of {config.task} with these sizes", SIZES)


def check_optimizer(optimizer: Optimizer, config: RunConfig) -> None:
    """The same for what it will keep, by its own account."""
    size = getattr(optimizer, "state_size", None)
    if size is not None and not config.options.get("fisher_device"):  # else it says so itself at its first step
        advice = "give smaller options, or a smaller model"
        _check(size(), config, f"{config.optimizer} with {config.options}", advice)


SIZES = "make --hidden, --layers, --length, --batch-size, --points or --limit smaller"


def _check(count: int, config: RunConfig, what: str, advice: str) -> None:
    try:
        check_fits(count, torch.device(config.device), what, advice)
    except ValueError as error:
        raise UserError(str(error)) from error


def needed(config: RunConfig) -> int:
    """Bytes of weights, gradients, generated data and one batch on its way through the model: the least of each.

    >>> needed(RunConfig(hidden=10**9).complete()) > 10**18
    True
    """
    layers, hidden, width = config.layers or 1, config.hidden or 1, BYTES[config.dtype]
    examples, values = _data(config)
    return layers * OBJECTS + width * (2 * _weights(config, layers, hidden) + values + examples * layers * hidden)


def _weights(config: RunConfig, layers: int, hidden: int) -> int:
    if config.model == TRANSFORMER:
        return MATRICES * layers * hidden**2 + (config.length or 0) * hidden
    if config.model == CONV:
        return KERNEL * hidden * (1 + (layers - 1) * hidden)
    if config.task in ("char-lm", "word-lm", "pixel-mnist", "addition"):
        return GATES[config.model] * (2 * layers - 1) * hidden**2
    if config.problem == "factorisation":
        return (ROWS + COLUMNS) * hidden
    return hidden**2 if config.problem == "autoencoder" else (layers - 1) * hidden**2 + hidden


def _data(config: RunConfig) -> tuple[int, int]:
    """(Examples of a batch, one for each step in time; numbers that are generated)."""
    points, batch, length = config.points or 0, config.batch_size or 0, config.length or 1
    if config.task == "addition":
        return batch * length, 4 * length * (config.limit or ADDITION_EXAMPLES)
    return (batch * length if batch else points), 2 * points
