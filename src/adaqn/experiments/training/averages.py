"""Weights that are evaluated in the place of those that are trained: averages of the run's own, or the optimizer's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from adaqn.experiments.errors import UserError

AVERAGED = "averaged_"
"""How the losses at a growing average are called."""


class GrowingAverage:
    """x ← x + c/(k + c)·(w − x) after the k-th step, x beginning at the first w: about the last 1/c of all steps.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = GrowingAverage(model, 2.0)
    >>> for value in (3.0, 1.0, 6.0):  # 3, then 3 + 2/4·(1 − 3), then 2 + 2/5·(6 − 2)
    ...     _ = model.weight.data.fill_(value)
    ...     average.update(model)
    >>> round(average.model.weight.item(), 6)
    3.6
    """

    def __init__(self, model: nn.Module, c: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.c, self.count = c, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """With the weights as they are after a step."""
        self.count += 1
        share = 1.0 if self.count == 1 else self.c / (self.count + self.c)
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), share)
        for ours, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            ours.copy_(theirs)

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "model": self.model.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.count = int(state["count"])


def has_modes(optimizer: Any) -> bool:
    """Is it one of the schedule-free ones, whose weights are found at an average after ``eval()``?"""
    return all("train_mode" in group for group in optimizer.param_groups)


def averages_itself(optimizer: Any) -> bool:
    """Does it keep a growing average, shown by ``averaged()``?"""
    return bool(getattr(optimizer, "averaging", 0.0))


def check_averaging(asked: float | None, optimizer: Any, name: str) -> bool:
    """Does the run have to keep the average that was asked for? Optimizers with one of their own do that themselves."""
    if asked is None or has_modes(optimizer):
        return False
    if not averages_itself(optimizer):
        return True
    if optimizer.averaging != asked:
        raise UserError(
            f"{name} averages by itself, with {optimizer.averaging:g}, not {asked:g}: give --option averaging={asked:g}"
        )
    return False


def evaluated(optimizer: Optimizer) -> AbstractContextManager[None]:
    """Within the block the model has the weights that the optimizer's losses are of."""
    return _at_average(optimizer) if has_modes(optimizer) else nullcontext()


@contextmanager
def _at_average(optimizer: Any) -> Iterator[None]:
    """Its own way there and back rounds; with the weights put back, an evaluation changes no bit of a run."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [p.detach().clone() for p in params]
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()
        with torch.no_grad():
            for p, weights in zip(params, kept, strict=True):
                p.copy_(weights)


def decays(optimizer: Optimizer, weight_decay: float) -> None:
    """w ← (1 − lr·λ)·w between each gradient and its step, as AdamW does; for optimizers whose own is none of these."""

    def decay(optimizer: Optimizer, *_: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                present = [p for p in group["params"] if p.grad is not None]
                if present:
                    torch._foreach_mul_(present, 1.0 - group["lr"] * weight_decay)

    optimizer.register_step_pre_hook(decay)
