"""A batch cut into parts by examples, and the losses of the parts put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def examples_in(batch: Any, dim: int = 0) -> int:
    """How many examples the tensors of a batch hold along a dimension.

    >>> examples_in((torch.zeros(5, 2), torch.zeros(5)))
    5
    """
    sizes = {tensor.shape[dim] for tensor in tensors_in(batch) if has_dim(tensor, dim)}
    if len(sizes) != 1:
        raise ValueError(
            f"a batch is cut along dimension {dim}, where its tensors have the lengths {sorted(sizes)}: they must have "
            "the same; batch_dim says which dimension counts examples"
        )
    return sizes.pop()


def part_of(batch: Any, part: slice, dim: int = 0) -> Any:
    """Some of the examples of a batch, as the batch is made.

    >>> part_of({"x": torch.arange(4), "scale": 2.0}, slice(1, 3))
    {'x': tensor([1, 2]), 'scale': 2.0}
    """
    if isinstance(batch, Tensor):
        return batch.narrow(dim, part.start, part.stop - part.start) if has_dim(batch, dim) else batch
    if isinstance(batch, Mapping):
        return {name: part_of(value, part, dim) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(part_of(value, part, dim) for value in batch)
    return batch


def joined(losses: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The losses of all examples, or their mean where the parts, of so many examples each, gave only that."""
    if len(losses) == 1:
        return losses[0][0]
    if all(found.dim() == 1 for found, _ in losses):
        return torch.cat([found for found, _ in losses])
    total = sum(size for _, size in losses)
    return torch.stack([found.double().mean() * (size / total) for found, size in losses]).sum()


def has_dim(tensor: Tensor, dim: int) -> bool:
    """Has it that dimension, counted from the front or, below 0, from the end?"""
    return -tensor.dim() <= dim < tensor.dim()


def examples_first(losses: Tensor, dim: int) -> Tensor:
    """Losses with the dimension of the examples in front; it is there already where they do not have it.

    >>> examples_first(torch.zeros(5, 2, 3), 1).shape, examples_first(torch.zeros(5, 2), 4).shape
    (torch.Size([2, 5, 3]), torch.Size([5, 2]))
    """
    return losses.movedim(dim, 0) if has_dim(losses, dim) else losses


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """All tensors in nested mappings, lists and tuples, in their order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(value)
