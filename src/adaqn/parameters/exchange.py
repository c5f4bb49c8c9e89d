"""Numbers that lie on the processes by one order, and are saved by another: equal slices of a known order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from adaqn.parameters.processes import Group, Processes, is_dtensor
from adaqn.parameters.slices import slice_bounds


def to_slices(processes: Processes, part: Tensor, positions: Sequence[Tensor], size: int) -> Tensor:
    """The last dimension of ``part`` in the order of the whole: a DTensor in equal slices, or all of it if alone.

    ``positions`` say for each process where its numbers lie in the whole, of that size.
    """
    if not isinstance(processes, Group):
        whole = part.new_empty(*part.shape[:-1], size)
        whole[..., positions[0]] = part
        return whole
    from adaqn.parameters.dtensors import sliced

    here, (start, stop) = processes.rank, slice_bounds(size, processes.rank, processes.count)
    order, leaving = _by_slice(positions[here], size, processes.count)
    arriving = [found[(start <= found) & (found < stop)].sort().values for found in positions]
    received = _all_to_all(processes, _rows_last(part)[order], leaving, [len(found) for found in arriving])
    mine = received.new_empty(stop - start, received.shape[1])
    mine[torch.cat(arriving) - start] = received
    return sliced(processes, mine.t().reshape(*part.shape[:-1], stop - start).contiguous(), size)


def from_slices(processes: Processes, saved: Tensor, positions: Sequence[Tensor]) -> Tensor:
    """What this process has of a saved tensor: the inverse of :func:`to_slices`, also from one that is whole."""
    if not isinstance(processes, Group) or not is_dtensor(saved):
        whole = saved.full_tensor() if is_dtensor(saved) else saved  # type: ignore[attr-defined]
        return whole.to(positions[0].device)[..., positions[processes.rank]]
    from adaqn.parameters.dtensors import slice_of

    size, here = saved.shape[-1], processes.rank
    start, stop = slice_bounds(size, here, processes.count)
    order, arriving = _by_slice(positions[here], size, processes.count)
    leaving = [found[(start <= found) & (found < stop)].sort().values for found in positions]
    slices = _rows_last(slice_of(processes, saved))
    received = _all_to_all(processes, slices[torch.cat(leaving) - start], [len(found) for found in leaving], arriving)
    mine = torch.empty_like(received)
    mine[order] = received
    return mine.t().reshape(*saved.shape[:-1], len(order))


def _by_slice(positions: Tensor, size: int, count: int) -> tuple[Tensor, list[int]]:
    """(The order in which numbers at these positions go to the slices, how many go to each)."""
    ordered, order = positions.sort()
    ends = torch.tensor([slice_bounds(size, rank, count)[1] for rank in range(count)], device=positions.device)
    before = torch.searchsorted(ordered, ends).tolist()
    return order, [last - first for first, last in zip([0, *before], before, strict=False)]


def _rows_last(part: Tensor) -> Tensor:
    """As a matrix with a row for each number of the last dimension."""
    return part.reshape(math.prod(part.shape[:-1]), part.shape[-1]).t()


def _all_to_all(processes: Group, rows: Tensor, leaving: list[int], arriving: list[int]) -> Tensor:
    if rows.shape[1] == 0:  # a history without room for pairs: no bytes to send, in any process
        return rows.new_empty(sum(arriving), 0)
    sent = rows.contiguous().view(torch.uint8)  # gloo does not send every dtype
    received = sent.new_empty(sum(arriving), sent.shape[1])
    dist.all_to_all_single(received, sent, arriving, leaving, group=processes.group)
    return received.view(rows.dtype)
