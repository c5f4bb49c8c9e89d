"""What an optimizer keeps between two steps, in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def state_bytes(optimizer: Optimizer) -> int:
    """Its own word where it has one, which counts work space too; otherwise the tensors of its state.

    >>> import torch
    >>> p = torch.nn.Parameter(torch.ones(10))
    >>> p.grad, opt = torch.ones(10), torch.optim.Adagrad([p])
    >>> opt.step()
    >>> state_bytes(opt)  # ten sums of squares, and a count of the steps
    44
    """
    told = getattr(optimizer, "state_size", None)
    if callable(told):
        return int(told())
    saved = optimizer.state_dict()  # an optimizer made of two has two states in it
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(saved.get("state", saved)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry)
