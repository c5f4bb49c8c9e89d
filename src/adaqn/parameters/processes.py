"""Several processes at work on one model: this file and ``dtensors.py`` alone know ``torch.distributed``.

Only small tensors of float64 pass through here, and, for ``shard_history``, the weights once per step. What lies in
parts on several processes is added up (:meth:`Processes.sum`). What every process has whole needs no sum; there the
processes only make sure that they decide alike.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AVAILABLE = dist.is_available()
INDEPENDENT = "none"
"""The ``process_group`` of a process that trains a model of its own beside others."""
SAME = 1e-3
"""By how much of their norm vectors may differ between processes before they are not the same ones."""


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
            from torch.distributed.device_mesh import DeviceMesh

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

    @property
    def has_copies(self) -> bool:
        """Does a part lie in several processes?"""
        return math.prod(dist.get_world_size(group) for group in self.parts) < self.count

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


def check_process_group(process_group: Any) -> None:
    """Is that something to choose processes by?"""
    if process_group is None or process_group == INDEPENDENT:
        return
    if not (AVAILABLE and isinstance(process_group, dist.ProcessGroup)):
        raise TypeError(
            f"process_group must be a torch.distributed.ProcessGroup, None (all processes, where there are several) "
            f"or {INDEPENDENT!r} (this process trains a model of its own), got {process_group!r}"
        )


def is_dtensor(tensor: Tensor) -> bool:
    """Where there is one, its module has been imported; to import it here would take every user a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of it."""
    with torch.no_grad():
        return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def processes_for(process_group: Any, device: torch.device) -> Processes:
    """Who works on parameters that every process has whole: the group, or by default everybody."""
    if not (AVAILABLE and dist.is_initialized()) or process_group == INDEPENDENT:
        return Processes()
    group = process_group or dist.group.WORLD
    return Group(group, device) if dist.get_world_size(group) > 1 else Processes()


def in_parts(processes: Processes) -> Processes:
    """The same processes, with vectors of which each has a part."""
    if not isinstance(processes, Group):
        return processes
    return Group(processes.group, processes.device, [processes.group])


def reshard(model: nn.Module | None) -> None:
    """Give up the whole copies of weights that FSDP2 keeps after a forward pass: they would outlive a change."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and model is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


@contextmanager
def noting(found: WeakSet[nn.Module]) -> Iterator[None]:
    """Within the block the modules of FSDP2 that are called are added to ``found``."""
    fsdp = sys.modules.get("torch.distributed.fsdp")

    def note(module: nn.Module, _: Any) -> None:
        if fsdp is not None and isinstance(module, fsdp.FSDPModule):
            found.add(module)

    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def check_same(fingerprints: Sequence[float], norms: Sequence[float]) -> None:
    """Have all processes the same vector? Sums and averages over different weights would be nonsense.

    Two vectors that differ by d have fingerprints that differ by about ‖d‖.
    """
    if max(fingerprints) - min(fingerprints) > SAME * max(norms) or max(norms) - min(norms) > SAME * max(norms):
        raise RuntimeError(
            "the gradients or weights differ between the processes, so nobody averages their gradients: wrap the model "
            "in DistributedDataParallel or fully_shard, or give process_group='none' if each process trains a model of "
            "its own"
        )
