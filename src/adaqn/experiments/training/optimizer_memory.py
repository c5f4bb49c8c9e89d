"""What an optimizer keeps between two steps, in bytes."""

from __future__ import annotations

from torch.optim import Optimizer

from adaqn.evaluation.batches import tensors_in


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
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(saved.get("state", saved)))
