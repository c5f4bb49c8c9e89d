"""Several processes at work on one model: the only file that knows ``torch.distributed``.

Only small tensors of float64 pass through here, and, for ``shard_history``, the weights once per step. What lies in
parts on several processes is added up (:meth:`Processes.sum`). What every process has whole needs no sum; there the
processes only make sure that they decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

AVAILABLE = torch.distributed.is_available()
if AVAILABLE:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Replicate, Shard

INDEPENDENT = "none"
"""The ``process_group`` of a process that trains a model of its own beside others."""
SAME = 1e-3
"""By how much the size of the weights may differ between processes before they are not the same weights."""


class Processes:
    """One process alone: there is nothing to add, and nobody to agree with."""

    rank, count = 0, 1

    def sum(self, partial: Tensor) -> Tensor:
        """The sum over all processes."""
        return partial

    def first(self, values: Tensor) -> Tensor:
        """What the first process has: the numbers by which all decide, where each has its own copy of them."""
        return values

    def average_(self, vector: Tensor) -> Tensor:
        """vector ← its mean over all processes."""
        return vector

    def table(self, *values: float) -> list[list[float]]:
        """One row per process."""
        return [list(values)]

    def joined(self, parts: Tensor, sizes: Sequence[int]) -> Tensor:
        """The 1-D tensors of all processes, of those sizes, one behind the other."""
        return parts

    def agreed(self, what: str, error: BaseException | None, *values: float) -> list[list[float]]:
        """A table of ``values``, or an error in every process if there is one in any: nobody waits for it in vain."""
        rows = self.table(float(error is not None), *values)
        if error is not None:
            raise error
        failed = [rank for rank, row in enumerate(rows) if row[0]]
        if failed:
            raise RuntimeError(f"{what} raised an error in process {failed[0]}: the message there says which")
        return [row[1:] for row in rows]

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """An error within the block, in any process, is an error in all."""
        try:
            yield
        except Exception as error:
            self.agreed(what, error)
        else:
            self.agreed(what, None)

    def pooled(self, evaluate: Callable[[], Tensor] | None) -> Tensor:
        """The losses of all processes' examples as one tensor; ``None`` where a process has no monitor.

        Scalars are averaged, each with the same weight: how many examples they stand for is not known.
        """
        losses, error = torch.zeros(0), None
        try:
            losses = evaluate() if evaluate is not None else losses
        except Exception as raised:
            error = raised
        if self.count == 1 and error is None:
            return losses
        mean = float(losses.mean()) if losses.numel() else math.nan
        rows = self.agreed("the monitor", error, losses.numel(), losses.dim(), mean)
        seen = [(int(size), int(dim), value) for size, dim, value in rows]
        if any(size and dim == 0 for size, dim, _ in seen):
            means = [value for size, _, value in seen if size]
            return torch.tensor(sum(means) / len(means), dtype=torch.float64)
        return self.joined(losses.double(), [size for size, _, _ in seen])


class Group(Processes):
    """The processes of a group of torch's; sums run over ``parts``, the groups in which vectors lie in parts."""

    def __init__(self, group: Any, device: torch.device, parts: Sequence[Any] = ()) -> None:
        self.group, self.parts, self.device = group, list(parts), device
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self._mesh: DeviceMesh | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """These processes in a line."""
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(self.group, self.device.type)
        return self._mesh

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self  # a copy of an optimizer works in the same processes

    def __reduce__(self) -> Any:
        raise TypeError("an optimizer at work in several processes cannot be pickled: save its state_dict() instead")

    def sum(self, partial: Tensor) -> Tensor:
        total = partial.clone()
        for group in self.parts:
            dist.all_reduce(total, group=group)
        return total

    def first(self, values: Tensor) -> Tensor:
        values = values.clone()
        dist.broadcast(values, group=self.group, group_src=0)
        return values

    def average_(self, vector: Tensor) -> Tensor:
        dist.all_reduce(vector, group=self.group)
        return vector.div_(self.count)

    def table(self, *values: float) -> list[list[float]]:
        row = torch.tensor(values, dtype=torch.float64, device=self.device)
        rows: list[list[float]] = self.gathered(row).tolist()
        return rows

    def joined(self, parts: Tensor, sizes: Sequence[int]) -> Tensor:
        padded = parts.new_zeros(max(sizes), device=self.device)
        padded[: parts.numel()] = parts
        rows = self.gathered(padded)
        return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])

    def gathered(self, row: Tensor) -> Tensor:
        """The rows of all processes as a matrix; all of one length."""
        rows = row.new_empty(self.count, row.numel())
        dist.all_gather(list(rows), row, group=self.group)
        return rows


def check_group(process_group: Any) -> None:
    """Is that something to choose processes by?"""
    if process_group is None or process_group == INDEPENDENT:
        return
    if not (AVAILABLE and isinstance(process_group, dist.ProcessGroup)):
        raise TypeError(
            f"process_group must be a torch.distributed.ProcessGroup, None (all processes, where there are several) "
            f"or {INDEPENDENT!r} (this process trains a model of its own), got {process_group!r}"
        )


def processes_for(process_group: Any, params: Sequence[Tensor]) -> Processes:
    """Who works on these parameters: whoever shares them, or the group, or by default everybody."""
    mesh = mesh_of(params)
    if mesh is not None:
        if process_group == INDEPENDENT:
            raise ValueError(
                "process_group='none' with sharded parameters: they are of several processes, leave it out"
            )
        placements = next(p.placements for p in params if isinstance(p, DTensor))
        parts = [mesh.get_group(dim) for dim, placement in enumerate(placements) if isinstance(placement, Shard)]
        return Group(process_group or _group_of(mesh), params[0].device, parts)
    if not (AVAILABLE and dist.is_initialized()) or process_group == INDEPENDENT:
        return Processes()
    group = process_group or dist.group.WORLD
    if dist.get_world_size(group) < 2:
        return Processes()
    return Group(group, params[0].device)


def mesh_of(params: Sequence[Tensor]) -> DeviceMesh | None:
    """The mesh over which all parameters are sharded alike; ``None`` if each process has them whole."""
    sharded = [p for p in params if AVAILABLE and isinstance(p, DTensor)]
    if not sharded:
        return None
    if len(sharded) < len(params):
        raise ValueError(
            f"{len(params) - len(sharded)} of {len(params)} parameters are not sharded and the others are: apply "
            "fully_shard to the whole model, or give those parameters an optimizer of their own"
        )
    kinds = {(p.device_mesh, tuple(type(placement) for placement in p.placements)) for p in sharded}
    if len(kinds) > 1 or any(kind not in (Shard, Replicate) for _, types in kinds for kind in types):
        raise ValueError(
            "the parameters are not all sharded over the same dimensions of one mesh, as fully_shard does: tensor "
            "parallelism beside it is not supported"
        )
    return sharded[0].device_mesh


def _group_of(mesh: DeviceMesh) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    raise ValueError(
        "the parameters lie on a part of all processes, in a mesh of several dimensions: give process_group"
    )


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of it."""
    with torch.no_grad():
        return tensor.to_local() if AVAILABLE and isinstance(tensor, DTensor) else tensor


def in_parts(processes: Processes) -> Processes:
    """The same processes, with vectors of which each has a part."""
    if not isinstance(processes, Group):
        return processes
    return Group(processes.group, processes.device, [processes.group])


def sharded_like(p: Tensor, part: Tensor, shape: Sequence[int], rows: int) -> Tensor:
    """The part that lies here, with ``rows`` dimensions of history in front, as a DTensor sharded as ``p`` is."""
    assert isinstance(p, DTensor)
    moved = [Shard(placement.dim + rows) if isinstance(placement, Shard) else placement for placement in p.placements]
    return _as_dtensor(part, p.device_mesh, moved, (*part.shape[:rows], *shape))


def sliced(processes: Group, part: Tensor, size: int) -> Tensor:
    """The slice that lies here, the last dimension of ``part``, as a DTensor of that size there."""
    return _as_dtensor(part, processes.mesh, [Shard(part.dim() - 1)], (*part.shape[:-1], size))


def _as_dtensor(part: Tensor, mesh: DeviceMesh, placements: Sequence[Any], shape: Sequence[int]) -> Tensor:
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def part_like(saved: Tensor, ours: Tensor) -> Tensor:
    """What this process needs of a saved tensor to fill its part of ``ours``, a DTensor of the same shape."""
    assert isinstance(ours, DTensor)
    if not isinstance(saved, DTensor):
        everywhere = [Replicate()] * ours.device_mesh.ndim
        saved = DTensor.from_local(saved.to(ours.device), ours.device_mesh, everywhere, run_check=False)
    assert isinstance(saved, DTensor)
    return local_part(saved.redistribute(ours.device_mesh, ours.placements))


def reshard(model: nn.Module | None) -> None:
    """Give up the whole copies of weights that FSDP2 keeps after a forward pass: they would outlive a change."""
    if AVAILABLE and model is not None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def check_same_weights(sizes: Sequence[float]) -> None:
    """Have all processes the same candidate? Sums and averages over different weights would be nonsense."""
    if max(sizes) - min(sizes) > SAME * max(sizes):
        raise RuntimeError(
            "the weights differ between the processes, so their gradients were not averaged: wrap the model in "
            "DistributedDataParallel or fully_shard, or give process_group='none' if each process trains a model of "
            "its own"
        )
