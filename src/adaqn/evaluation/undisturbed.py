"""A model is evaluated and left as it was; and has anything been written to its buffers since?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from adaqn.evaluation.random_state import random_state_kept


@contextmanager
def undisturbed(model: nn.Module, *, backward: bool = False) -> Iterator[None]:
    """Eval mode within the block; modes, buffers and torch's random state as before after it.

    With ``backward`` recurrent modules stay in training mode, without dropout: cuDNN has no backward pass in eval mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    devices = {buffer.device for _, _, buffer, _ in buffers} | {p.device for p in model.parameters()}
    with random_state_kept(devices):
        model.eval()
        recurrent = [(m, m.dropout) for m in model.modules() if backward and isinstance(m, nn.RNNBase)]
        for rnn, _ in recurrent:
            rnn.training, rnn.dropout = True, 0.0
        try:
            yield
        finally:
            for rnn, dropout in recurrent:
                rnn.dropout = dropout
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for module, name, buffer, value in buffers:
                    module._buffers[name] = buffer.copy_(value)


def without_ddp(model: nn.Module) -> nn.Module:
    """The module itself: a backward pass through DDP would wait for the other processes."""
    inner = getattr(model, "module", None)
    is_wrapped = type(model).__name__ == "DistributedDataParallel" and isinstance(inner, nn.Module)
    return inner if is_wrapped and inner is not None else model


def precision(model: nn.Module, autocast: torch.dtype | None) -> torch.autocast:
    """Autocast with that dtype, or none, whatever the caller has; never with weights that the caller's has cached."""
    device = next((p.device.type for p in model.parameters()), "cpu")
    return torch.autocast(device, dtype=autocast, enabled=autocast is not None, cache_enabled=False)


class BuffersSeen:
    """The buffers of a model as they are now, by identity and version: nothing is copied.

    >>> norm = nn.BatchNorm1d(1)
    >>> seen = BuffersSeen(norm)
    >>> seen.unchanged(norm)
    True
    >>> _ = norm(Tensor([[1.0], [2.0]]))
    >>> seen.unchanged(norm)
    False
    """

    def __init__(self, model: object) -> None:
        self._buffers = _versions(model)

    def unchanged(self, model: object) -> bool:
        now = _versions(model)
        return len(now) == len(self._buffers) and all(
            a is b and before == after for (a, before), (b, after) in zip(self._buffers, now, strict=True)
        )


def _versions(model: object) -> list[tuple[Tensor, int]]:
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    return [(b, 0 if b.is_inference() else b._version) for b in buffers]  # inference tensors are never written to
