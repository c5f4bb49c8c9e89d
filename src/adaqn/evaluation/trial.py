"""The first evaluation of a monitored loss: whether it can be made already, and mistakes said where they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.evaluation.batches import has_dim, tensors_in
from adaqn.evaluation.losses import LossFunction, loss_of, output_of

MISTAKES = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, AssertionError)
_MOST = 6
"""Entries of a tuple, list or mapping that are described one by one."""
_RECIPES = "docs/frameworks.md#the-monitor-of-your-model has a recipe for each kind of model"


def is_ready(model: nn.Module, batch: Any) -> bool:
    """Can the model be evaluated on that batch as both are now?

    Not while the weights lie elsewhere than the batch, have another dtype, or are yet to be made; and with several
    processes at work a mistake in one must be an error in all, for which they have to meet.

    >>> is_ready(nn.Linear(2, 1), (torch.ones(3, 2), torch.ones(3, 1)))
    True
    >>> is_ready(nn.Linear(2, 1, device="meta"), (torch.ones(3, 2), torch.ones(3, 1)))
    False
    """
    if _in_several_processes():
        return False
    weights, given = [*model.parameters(), *model.buffers()], list(tensors_in(batch))
    if any(type(w) not in (Tensor, nn.Parameter) or w.is_meta for w in weights):
        return False
    dtypes = {w.dtype for w in weights if w.is_floating_point()}
    fits = {t.dtype for t in given if t.is_floating_point()} <= dtypes or not dtypes
    return fits and len({t.device for t in (*weights, *given)}) <= 1


def _in_several_processes() -> bool:
    dist = sys.modules.get("torch.distributed")
    return bool(dist and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def first_loss(model: nn.Module, loss_fn: LossFunction | None, batch: Any) -> Tensor:
    """The loss of the model on its batch; a mistake in how they fit together is one error that says so."""
    try:
        output = output_of(model, batch, whole=loss_fn is None)
    except MISTAKES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(_about_model(error, loss_fn, batch)) from error
    try:
        loss = loss_of(output, loss_fn, batch)
        if not isinstance(loss, Tensor | Real):
            raise TypeError(f"it returned {described(loss)} instead of a loss")
        return loss
    except MISTAKES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(_about_loss(error, output, loss_fn, batch)) from error


def _about_model(error: Exception, loss_fn: LossFunction | None, batch: Any) -> str:
    if isinstance(batch, Mapping):
        call, rest = "model(**batch)", f"The batch has {described(dict(batch))}"
    elif loss_fn is None:
        call, rest = "model(*batch)", f"The batch is {described(batch)}"
    else:
        call = "model(*inputs)"
        rest = (
            f"The inputs are {described(tuple(batch[:-1]))}; the last entry of the batch is kept for loss_fn as target"
        )
    hints = _about_lists(batch if isinstance(batch, Mapping) or loss_fn is None else batch[:-1])
    return ". ".join([f"the monitor could not evaluate {call}: {said(error)}", rest, *hints, _RECIPES])


def _about_loss(error: Exception, output: Any, loss_fn: LossFunction | None, batch: Any) -> str:
    if loss_fn is None:
        return f"{error}. {_RECIPES}"
    is_mapping = isinstance(batch, Mapping)
    call, target = ("loss_fn(output, batch)", dict(batch)) if is_mapping else ("loss_fn(output, target)", batch[-1])
    found = f"the monitor could not evaluate {call}: {said(error)}. The model returned {described(output)}; the "
    found += f"{'batch' if is_mapping else 'target'} is {described(target)}"
    return ". ".join([found, *_about_lists([target]), *_hints(output, target), _RECIPES])


def _about_lists(values: Any) -> Iterator[str]:
    """Numbers that a tokenizer or ``tolist()`` has left in lists."""
    values = values.values() if isinstance(values, Mapping) else values
    if any(isinstance(value, list) and value and next(tensors_in(value), None) is None for value in values):
        yield "Convert the lists to tensors: a tokenizer does with return_tensors='pt', others with torch.tensor(...)"


def _hints(output: Any, target: Any) -> Iterator[str]:
    if not isinstance(output, Tensor):
        yield (
            f"Take what the loss needs in a loss_fn of your own, such as {_suggested_loss(output, target)}; or give "
            "loss_fn=None if the model is called with the targets and returns its own loss"
        )
    first = output if isinstance(output, Tensor) else next(tensors_in(output), None)
    if first is None or not isinstance(target, Tensor) or first.dim() < 3 or target.dim() < 2:
        return
    if first.shape[1] != target.shape[1] and first.shape[1] == 1:
        yield (
            "Is it a language model that returns the last position alone unless it is given targets? Then give it "
            "both: the batch (tokens, targets, targets) calls model(tokens, targets)"
        )
    elif first.shape[: target.dim()] == target.shape:
        yield "torch's losses want the classes in dimension 1: output.transpose(1, 2)"


def _suggested_loss(output: Any, target: Any) -> str:
    """A loss function for an output of several parts. Of one with ``logits`` the first part may be its own loss."""
    part = "output.logits" if hasattr(output, "logits") else "output[0]"
    if isinstance(target, Mapping):
        return f"lambda output, batch: loss({part}, batch['labels'])"
    return f"lambda output, target: loss({part}, target)"


def said(error: Exception) -> str:
    """Its kind and its words."""
    return f"{type(error).__name__}: {str(error).strip().rstrip('.')}"


def described(value: Any) -> str:
    """In a few words; of what is long, the first entry.

    >>> described((torch.ones(2, 3), None))
    '(Tensor (2, 3) float32, None)'
    >>> described([[1] * 32] * 64)
    'list of 64, the first a list of 32, the first an int'
    """
    if isinstance(value, Tensor):
        return f"Tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        shown = [f"{name}: {described(v)}" for name, v in islice(value.items(), _MOST)]
        more = [f"and {len(value) - _MOST} more"] if len(value) > _MOST else []
        return f"{type(value).__name__} with " + ", ".join([*shown, *more])
    if isinstance(value, tuple | list) and len(value) > _MOST:
        first = described(value[0])
        article = "an" if first[0].lower() in "aeiou" else "a"
        return f"{type(value).__name__} of {len(value)}, the first {article} {first}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(described, value))})"
    return "None" if value is None else type(value).__name__


def first_length(batch: Any, dim: int) -> int | None:
    """How many examples, by the first tensor that has that dimension."""
    return next((t.shape[dim] for t in tensors_in(batch) if has_dim(t, dim)), None)
