"""Vectors of which each process has a part: parameters that FSDP2 has sharded, and history sharded for DDP.

All that a step does with vectors is element-wise, products apart; those are sums over the processes. So a part of a
vector is a vector like any other, and may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.core.curvature import Curvature
from adaqn.core.products import Reduce, local
from adaqn.core.scaling import Scaling
from adaqn.optim.distributed import (
    Group,
    Processes,
    in_parts,
    local_part,
    mesh_of,
    part_like,
    processes_for,
    sharded_like,
    sliced,
)
from adaqn.optim.flat import FlatParameters, as_real
from adaqn.optim.model_curvature import BatchCurvature


class _FlatParts(FlatParameters):
    """What both have in common: products are sums over the processes, and what is saved is a DTensor."""

    is_whole = False

    @property
    def reduce(self) -> Reduce:
        return local if self.processes.count == 1 else self.processes.sum

    @property
    def settle(self) -> Reduce:
        return self.reduce

    def held(self, index: int, saved: Tensor, view: Tensor) -> Tensor:
        ours = self.shown(index, view)
        fitting = saved if saved.shape == ours.shape else saved.reshape(ours.shape)
        return fitting if ours is view else part_like(fitting, ours)


class FlatShards(_FlatParts):
    """Parameters that are DTensors: the vector holds this process's shards, in whatever dimension they are cut."""

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [as_real(local_part(tensor)) for tensor in tensors]

    def shown(self, index: int, view: Tensor) -> Tensor:
        rows = view.dim() - len(self.shapes[index])
        return sharded_like(self.params[index], view, self.saved_shape(index), rows)

    def saved_shape(self, index: int) -> tuple[int, ...]:
        p = self.params[index]
        return (*p.shape, 2) if p.is_complex() else tuple(p.shape)


class FlatSlices(_FlatParts):
    """Parameters that every process has whole, and vectors that hold a slice of each: ``shard_history``.

    Each parameter is cut by the number of its elements, so that its saved history is a DTensor of shape
    ``(rows, numel)`` that knows what it holds. Each process moves its own slices of the weights, and
    :meth:`publish` gives them to all.
    """

    def __init__(self, params: Sequence[Tensor], processes: Processes | None = None) -> None:
        self.processes = processes or Processes()
        for index, p in enumerate(params):
            if not p.is_contiguous():
                raise ValueError(
                    f"parameter {index} of shape {tuple(p.shape)} is not contiguous, and shard_history cuts "
                    "parameters by the order of their elements: make it contiguous, or leave out shard_history"
                )
        super().__init__(params, processes)
        self.whole_sizes = [as_real(p).numel() for p in self.params]
        dtypes = {p.dtype.to_real() for p in self.params}
        self._sent_as = dtypes.pop() if len(dtypes) == 1 else self.dtype
        ranks = range(self.processes.count)
        self._sizes = [[stop - start for start, stop in self._bounds(rank)] for rank in ranks]

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flattened = [as_real(tensor).reshape(-1) for tensor in tensors]
        bounds = (slice_bounds(vector.numel(), self.processes.rank, self.processes.count) for vector in flattened)
        return [vector[start:stop] for vector, (start, stop) in zip(flattened, bounds, strict=True)]

    def shown(self, index: int, view: Tensor) -> Tensor:
        if not isinstance(self.processes, Group):
            return view
        return sliced(self.processes, view, self.whole_sizes[index])

    def saved_shape(self, index: int) -> tuple[int, ...]:
        return (self.whole_sizes[index],)

    @torch.no_grad()
    def publish(self) -> None:
        if not isinstance(self.processes, Group):
            return
        row = torch.zeros(max(map(sum, self._sizes)), dtype=self._sent_as, device=self.device)
        torch._foreach_copy_(list(torch.split(row[: self.n], self.sizes)), self.reals())
        rows = self.processes.gathered(row)
        weights = [as_real(p).view(-1) for p in self.params]
        for rank, (theirs, sizes) in enumerate(zip(rows, self._sizes, strict=True)):
            if rank != self.processes.rank:
                targets = [w[start:stop] for w, (start, stop) in zip(weights, self._bounds(rank), strict=True)]
                torch._foreach_copy_(targets, list(torch.split(theirs[: sum(sizes)], sizes)))

    def _bounds(self, rank: int) -> list[tuple[int, int]]:
        return [slice_bounds(size, rank, self.processes.count) for size in self.whole_sizes]


def slice_bounds(size: int, rank: int, count: int) -> tuple[int, int]:
    """Where the slice of that process begins and ends: equal slices, the last ones shorter or empty.

    >>> [slice_bounds(10, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    length = -(-size // count)
    return min(rank * length, size), min((rank + 1) * length, size)


def flat_parameters(params: Sequence[Tensor], process_group: Any, *, shard_history: bool) -> FlatParameters:
    """The vector of these parameters, as they lie on the processes at work."""
    processes = processes_for(process_group, params)
    if mesh_of(params) is not None:
        if shard_history:
            raise ValueError("shard_history=True with parameters that are sharded already: leave it out")
        return FlatShards(params, processes)
    if shard_history:
        return FlatSlices(params, in_parts(processes))
    return FlatParameters(params, processes)


def check_parts(flat: FlatParameters, scaling: Scaling, curvature: Curvature, fisher_device: Any) -> None:
    """Can these parts of a method work with vectors of which each process has a part?"""
    if flat.is_whole:
        return
    kind = "sharded parameters" if isinstance(flat, FlatShards) else "shard_history=True"
    if not scaling.elementwise or scaling.tensor_shapes((2, 2)):
        raise ValueError(
            f"{type(scaling).__name__} needs whole matrices, and with {kind} each process has a part of them: give "
            "preset='modern', or scaling='adam' or another that is element-wise"
        )
    if isinstance(curvature, BatchCurvature):
        raise ValueError(
            f"{type(curvature).__name__} evaluates the unwrapped model, and with {kind} no process has whole vectors "
            "for it: use curvature='accumulated_fisher'"
        )
    if fisher_device is not None and torch.device(fisher_device).type != flat.device.type:
        raise ValueError(
            f"fisher_device={fisher_device} with {kind}: what is saved of a parameter must lie on one kind of device. "
            "Sharding already divides F̃ by the number of processes"
        )
