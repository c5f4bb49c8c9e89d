"""The loss of a model on one batch: of each example where its loss function offers that, and wide enough to average."""

from __future__ import annotations

import copy
import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.evaluation.batches import examples_first

LossFunction = Callable[..., Tensor]


class EachExample:
    """A loss function that returns one loss per example if it can, and what it always returned if not.

    torch's losses, modules and functions alike, have a ``reduction`` that is "mean" by default; with "none" they tell
    what they averaged. That is taken only if it is the same mean: with class weights, or targets to be ignored, it is
    not. Every call compares the two until ``is_checked`` says that the targets have been seen.

    >>> output, target = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> EachExample(nn.CrossEntropyLoss())(output, target).shape
    torch.Size([4])
    >>> EachExample(lambda output, target: output.mean())(output, target).shape
    torch.Size([])
    """

    def __init__(self, loss_fn: LossFunction, batch_dim: int = 0) -> None:
        self.loss_fn, self.batch_dim = loss_fn, batch_dim
        self.apart = _without_reduction(loss_fn)
        self.is_checked = False

    def __call__(self, output: object, target: object) -> Tensor:
        if self.apart is None:
            return self.loss_fn(output, target)
        losses = self.apart(output, target)
        if losses.dim() > 1:
            losses = examples_first(losses, self.batch_dim).flatten(1).mean(1)
        if not self.is_checked:
            whole = self.loss_fn(output, target)
            if losses.dim() != 1 or whole.dim() != 0 or not _close(losses.mean(), whole):
                self.apart = None
                return whole
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


def batch_loss(model: Callable[..., Any], loss_fn: LossFunction | None, batch: Any) -> Tensor:
    """The loss of a model, or of a function in its place, on ``(*inputs, target)`` or a mapping.

    Without ``loss_fn`` the model is given all of the batch and returns its loss.
    """
    return loss_of(output_of(model, batch, whole=loss_fn is None), loss_fn, batch)


def output_of(model: Callable[..., Any], batch: Any, *, whole: bool) -> Any:
    """What the model returns for a mapping, for the inputs, or for all of the batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if whole else model(*batch[:-1])


def loss_of(output: Any, loss_fn: LossFunction | None, batch: Any) -> Tensor:
    if loss_fn is None:
        return own_loss(output)
    return loss_fn(output, batch if isinstance(batch, Mapping) else batch[-1])


def own_loss(output: Any) -> Tensor:
    """The loss in what a model returned: the output itself, its ``loss``, or the one scalar of a tuple.

    >>> float(own_loss((torch.randn(4, 3), torch.tensor(0.5))))
    0.5
    """
    found, scalars = output, []
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif isinstance(output, tuple | list):
        scalars = [i for i, part in enumerate(output) if isinstance(part, Tensor) and part.dim() == 0]
        found = output[scalars[0]] if len(scalars) == 1 else getattr(output, "loss", None)
    elif not isinstance(output, Tensor):
        found = getattr(output, "loss", None)
    if isinstance(found, Tensor) and found.dim() <= 1:
        return found
    if scalars:
        raise ValueError(
            f"loss_fn=None is for a model that returns one loss, and this one returned {type(output).__name__} with "
            f"{len(scalars)} scalars, entries {', '.join(map(str, scalars))}: say which is the loss with a loss_fn, "
            f"such as lambda output, _: output[{scalars[0]}]. Unless the batch is a mapping, its last entry is then "
            "kept for loss_fn, so add one: (*batch, None)"
        )
    shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
    raise ValueError(
        f"loss_fn=None is for a model that returns its own loss, and this one returned {type(output).__name__}{shape}, "
        "with no scalar and no `loss` in it: is it called with the targets? Otherwise give a loss_fn"
    )


def check_batch(batch: Any, *, whole: bool = False) -> None:
    """Has it inputs and, unless all of it goes to the model, a target?"""
    if isinstance(batch, Mapping) or (isinstance(batch, Sequence) and len(batch) >= (1 if whole else 2)):
        return
    raise ValueError(
        f"a batch is (*inputs, target) or a mapping of arguments, got {type(batch).__name__}: "
        "for anything else give a function of your own that returns the loss"
    )


def monitored_loss(monitor: Callable[[], Any]) -> Tensor:
    """Call a monitor of any make; returns a detached scalar or 1-D tensor, float32 or wider."""
    loss = monitor()
    if isinstance(loss, numbers.Real):
        return torch.tensor(float(loss), dtype=torch.float64)
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the monitor returned {type(loss).__name__}: it must return a scalar loss or a 1-D "
            "tensor of per-example losses"
        )
    if loss.dim() > 1 or loss.numel() == 0:
        raise ValueError(
            f"the monitor returned a tensor of shape {tuple(loss.shape)}: it must return a scalar "
            "loss or a non-empty 1-D tensor of per-example losses"
        )
    return widened(loss.detach())


def widened(loss: Tensor) -> Tensor:
    """Losses as float32 or wider, so that their mean is not rounded away."""
    return loss if loss.dtype == torch.float64 else loss.float()
