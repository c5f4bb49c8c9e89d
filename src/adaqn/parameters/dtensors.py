"""Tensors that know which part of them lies in which process. Imported by those who have one: it takes a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from adaqn.parameters.processes import INDEPENDENT, Group, local_part


def sharing_processes(process_group: Any, params: Sequence[Tensor]) -> Group:
    """Those over which the parameters are sharded."""
    if process_group == INDEPENDENT:
        raise ValueError("process_group='none' with sharded parameters: they are of several processes, leave it out")
    mesh, placements = mesh_of(params)
    parts = [mesh.get_group(dim) for dim, placement in enumerate(placements) if isinstance(placement, Shard)]
    return Group(process_group or _group_of(mesh), params[0].device, parts)


def mesh_of(params: Sequence[Tensor]) -> tuple[DeviceMesh, Sequence[Placement]]:
    """The mesh over which all parameters are sharded alike, and how."""
    sharded = [p for p in params if isinstance(p, DTensor)]
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
    return sharded[0].device_mesh, sharded[0].placements


def _group_of(mesh: DeviceMesh) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    raise ValueError(
        "the parameters lie on a part of all processes, in a mesh of several dimensions: give process_group"
    )


def sharded_like(p: Tensor, part: Tensor, shape: Sequence[int], rows: int) -> Tensor:
    """The part that lies here, with ``rows`` dimensions of history in front, as a DTensor sharded as ``p`` is."""
    assert isinstance(p, DTensor)
    moved = [Shard(placement.dim + rows) if isinstance(placement, Shard) else placement for placement in p.placements]
    return _as_dtensor(part, p.device_mesh, moved, (*part.shape[:rows], *shape))


def shard_counts(p: Tensor) -> list[tuple[int, int]]:
    """(Into how many, along which dimension) it is sharded."""
    assert isinstance(p, DTensor)
    return [(p.device_mesh.size(dim), place.dim) for dim, place in enumerate(p.placements) if isinstance(place, Shard)]


def shard_index(p: Tensor) -> list[int]:
    """Which of the shards lies here."""
    assert isinstance(p, DTensor)
    here: Sequence[int] = p.device_mesh.get_coordinate() or ()
    return [at for at, placement in zip(here, p.placements, strict=True) if isinstance(placement, Shard)]


def row_per_shard(p: Tensor, row: Tensor) -> Tensor:
    """A DTensor that has a row for each shard of ``p``, all of one length; this process's is ``row``."""
    assert isinstance(p, DTensor)
    placements: list[Placement] = []
    for placement in p.placements:
        before = sum(isinstance(other, Shard) for other in placements)
        placements.append(Shard(before) if isinstance(placement, Shard) else Replicate())
    counts = [count for count, _ in shard_counts(p)]
    return _as_dtensor(row.view(*[1] * len(counts), -1), p.device_mesh, placements, (*counts, row.numel()))


def sliced(processes: Group, part: Tensor, size: int) -> Tensor:
    """The slice that lies here, the last dimension of ``part``, as a DTensor of that size there."""
    return _as_dtensor(part, processes.mesh, [Shard(part.dim() - 1)], (*part.shape[:-1], size))


def slice_of(processes: Group, saved: Tensor) -> Tensor:
    """The slice that lies here, in the last dimension of a DTensor."""
    assert isinstance(saved, DTensor)
    return local_part(saved.redistribute(processes.mesh, [Shard(saved.dim() - 1)]))


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
