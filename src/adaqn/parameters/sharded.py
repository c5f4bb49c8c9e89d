"""How the vectors of a method lie on the processes at work, and which methods can work with that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.core.curvature import Curvature
from adaqn.core.scaling import Scaling
from adaqn.parameters.dealt import FlatBlocks
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.processes import in_parts, is_dtensor, processes_for
from adaqn.parameters.shards import FlatShards
from adaqn.parameters.slices import FlatSlices, needs_matrices


def flat_parameters(
    params: Sequence[Tensor], process_group: Any, scaling: Scaling, *, shard_history: bool, vectors: int
) -> FlatParameters:
    """The vector of these parameters, as they lie on the processes at work; a method keeps so many vectors."""
    if any(map(is_dtensor, params)):
        if shard_history:
            raise ValueError("shard_history=True with parameters that are sharded already: leave it out")
        from adaqn.parameters.dtensors import sharing_processes

        return FlatShards(params, sharing_processes(process_group, params))
    processes = processes_for(process_group, params[0].device)
    if shard_history and has_blocks(scaling):
        return FlatBlocks(params, in_parts(processes), scaling, vectors)
    if shard_history:
        return FlatSlices(params, in_parts(processes))
    return FlatParameters(params, processes)


def check_parts(flat: FlatParameters, scaling: Scaling, curvature: Curvature, fisher_device: Any) -> None:
    """Can these parts of a method work with vectors of which each process has a part?"""
    if flat.is_whole:
        return
    check_scaling(flat, scaling, "give scaling='kronecker' or 'adam', or tell its blocks in Scaling.blocks")
    kind = "sharded parameters" if isinstance(flat, FlatShards) else "shard_history=True"
    if curvature.needs_model:
        raise ValueError(
            f"{type(curvature).__name__} evaluates the unwrapped model, and with {kind} no process has whole vectors "
            "for it: use PairOptions(curvature='accumulated_fisher')"
        )
    if fisher_device is not None and torch.device(fisher_device).type != flat.device.type:
        raise ValueError(
            f"fisher_device={fisher_device} with {kind}: what is saved of a parameter must lie on one kind of device. "
            "Sharding already divides F̃ by the number of processes"
        )


def check_scaling(flat: FlatParameters, scaling: Scaling, advice: str) -> None:
    """Can H0 work where a process has a part of each matrix?"""
    if isinstance(flat, FlatShards) and needs_matrices(scaling) and not has_blocks(scaling):
        raise ValueError(
            f"{type(scaling).__name__} needs whole matrices, and with sharded parameters each process has a part of "
            f"them: {advice}"
        )


def has_blocks(scaling: Scaling) -> bool:
    """Is this H0 made of blocks that know nothing of each other?"""
    return scaling.blocks((2, 2)) is not None
