"""Has anything been written to a model's buffers? A loss kept from before then is one of another model."""

from __future__ import annotations

from torch import Tensor, nn


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
