"""Tasks whose every gradient is of the whole batch: one set of examples, and an error beside the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adaqn.experiments.physics.residuals import glorot
from adaqn.experiments.problems.tasks import Batch, Task, whole
from adaqn.experiments.training.config import RunConfig


class WholeBatch(Task):
    """One batch, which is all there is, or one sample for many evaluations. A step is an evaluation of loss and
    gradient.
    """

    error_name = "relative L2 error"
    """What :meth:`error` is of."""

    def __init__(self, config: RunConfig, batch: Batch, sha256: str) -> None:
        self.config, self.sha256, self.share = config, sha256, whole
        self.splits = {"train": (self.on_device(batch[0]), self.on_device(batch[1]))}
        self.count = len(batch[1])
        self.steps_per_epoch = 1

    def initialise(self, model: nn.Module, generator: torch.Generator) -> None:
        glorot(model, generator)

    def batch(self, step: int) -> Batch:
        return self.splits["train"]

    def monitoring_set(self) -> Batch:
        return self.splits["train"]

    def sample(self, number: int) -> Batch:
        """The batch of that sample, where the run takes a new one now and then; 0 is the first."""
        raise NotImplementedError

    @torch.no_grad()
    def loss_on(self, model: nn.Module, batch: Batch) -> float:
        """Without gradient."""
        x, target = batch
        return float(self.losses(model(x, None), target).mean())

    def losses(self, output: tuple[Tensor, Any], target: Tensor) -> Tensor:
        return (output[0] - target).square().mean(1)

    def error(self, model: nn.Module) -> float:
        """How far the model is from what it should be, where it was not trained."""
        raise NotImplementedError


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖, in float64.

    >>> relative_error(torch.tensor([3.0, 1.0]), torch.tensor([3.0, 4.0]))
    0.6
    """
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
