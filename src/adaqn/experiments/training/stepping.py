"""One step of an optimizer of any kind: what each wants to be given of the model and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[], tuple[Tensor, Tensor]]
"""→ (the loss, what the model returned)."""


def take_step(
    optimizer: Any, kind: str, forward: Forward, index: int | None = None, clip: tuple[nn.Module, float] | None = None
) -> None:
    """A step of that kind (:class:`adaqn.experiments.optimizers.Entry` has them) from one batch.

    Args:
        optimizer: its ``step`` is called once.
        kind: ``"plain"``, ``"closure"``, ``"outputs"`` or ``"indexed"``.
        forward: the batch through the model; may be called several times.
        index: of the batch, for ``"indexed"``.
        clip: a model, and the largest norm of its gradient.
    """

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss, _ = forward()
        torch.autograd.backward(loss)
        if clip is not None:
            nn.utils.clip_grad_norm_(clip[0].parameters(), clip[1])
        return loss

    if kind == "plain":
        closure()
        optimizer.step()
    elif kind == "indexed":
        optimizer.step(closure, index)
    else:
        optimizer.step(closure if kind == "closure" else forward)
