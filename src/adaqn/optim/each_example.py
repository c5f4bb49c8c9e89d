"""One loss per example from a loss function that averages, where the function itself offers that."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

LossFunction = Callable[..., Tensor]


class EachExample:
    """A loss function that returns one loss per example if it can, and what it always returned if not.

    torch's losses, modules and functions alike, have a ``reduction`` that is "mean" by default; with "none" they tell
    what they averaged. That is taken only if it is the same mean: with class weights, or targets to be ignored, it is
    not, and the first call finds that out.

    >>> output, target = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> EachExample(nn.CrossEntropyLoss())(output, target).shape
    torch.Size([4])
    >>> EachExample(lambda output, target: output.mean())(output, target).shape
    torch.Size([])
    """

    def __init__(self, loss_fn: LossFunction) -> None:
        self.loss_fn = loss_fn
        self.apart = _without_reduction(loss_fn)
        self.checked = False

    def __call__(self, output: object, target: object) -> Tensor:
        if self.apart is None:
            return self.loss_fn(output, target)
        losses = self.apart(output, target)
        if losses.dim() > 1:
            losses = losses.flatten(1).mean(1)
        if not self.checked:
            whole = self.loss_fn(output, target)
            if losses.dim() != 1 or whole.dim() != 0 or not _close(losses.mean(), whole):
                self.apart = None
                return whole
            self.checked = True
        return losses


def _without_reduction(loss_fn: LossFunction) -> LossFunction | None:
    if isinstance(loss_fn, nn.Module):
        if getattr(loss_fn, "reduction", None) != "mean":
            return None
        apart = copy.copy(loss_fn)
        vars(apart)["reduction"] = "none"
        return apart
    try:
        reduction = inspect.signature(loss_fn).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return functools.partial(loss_fn, reduction="none") if reduction and reduction.default == "mean" else None


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = max(1e-5, 8.0 * torch.finfo(b.dtype).eps)
    return bool(torch.isclose(a.double(), b.double(), rtol=tolerance, atol=0.0, equal_nan=True))
