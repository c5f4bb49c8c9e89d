"""Vectors of which each process has a part, and among them those of parameters that FSDP2 has sharded.

All that a step does with vectors is element-wise, products and H0 apart; products are sums over the processes, and H0
has blocks that lie within the parts. So a part of a vector is a vector like any other, and may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from adaqn.core.products import Reduce, local
from adaqn.parameters.flat import NO_PRINT, FlatParameters, as_real
from adaqn.parameters.processes import Group, Processes, is_dtensor, local_part, noting, reshard


class FlatParts(FlatParameters):
    """What both have in common: products are sums over the processes, and what is saved is a DTensor."""

    is_whole = False

    @property
    def reduce(self) -> Reduce:
        return local if self.processes.count == 1 else self.processes.sum

    @property
    def settle(self) -> Reduce:
        return self.reduce

    def fingerprints(self, candidate: Tensor) -> tuple[float, float, float, float]:
        return *NO_PRINT, *self.print_of_gradients()  # parts of a candidate differ

    def held(self, index: int, saved: Tensor, view: Tensor) -> Tensor:
        ours = self.shown(index, view)
        if saved.shape != ours.shape:
            saved = (saved.full_tensor() if is_dtensor(saved) else saved).reshape(ours.shape)  # type: ignore[attr-defined]
        if ours is view:
            return saved
        from adaqn.parameters.dtensors import part_like

        return part_like(saved, ours)


class FlatShards(FlatParts):
    """Parameters that are DTensors: the vector holds this process's shards, in whatever dimension they are cut."""

    def __init__(self, params: Sequence[Tensor], processes: Processes | None = None) -> None:
        super().__init__(params, processes)
        self.modules: WeakSet[nn.Module] = WeakSet()
        """Of FSDP2, that were called: after an evaluation without backward they keep whole weights, of old shards."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "modules": WeakSet()}  # a copy has its own parameters, and other modules

    def evaluated(self) -> AbstractContextManager[None]:
        return nullcontext() if self.modules else noting(self.modules)

    def scatter(self, flat: Tensor) -> None:
        for module in self.modules:
            reshard(module)
        super().scatter(flat)

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [as_real(local_part(tensor)) for tensor in tensors]

    @property
    def settle(self) -> Reduce:
        processes = self.processes
        if not (isinstance(processes, Group) and processes.has_copies):
            return self.reduce
        return lambda partial: processes.first(processes.sum(partial))  # copies of a part may round differently

    def print_of_weights(self) -> tuple[float, float]:
        return NO_PRINT  # parts, too

    def print_of_gradients(self) -> tuple[float, float]:
        return NO_PRINT

    def shown(self, index: int, view: Tensor) -> Tensor:
        from adaqn.parameters.dtensors import sharded_like

        rows = view.dim() - len(self.shapes[index])
        return sharded_like(self.params[index], view, self.saved_shape(index), rows)

    def saved_shape(self, index: int) -> tuple[int, ...]:
        p = self.params[index]
        return (*p.shape, 2) if p.is_complex() else tuple(p.shape)
