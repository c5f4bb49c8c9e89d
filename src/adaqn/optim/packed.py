"""Tensors of any shape per parameter, one buffer per name: what a scaling keeps beside vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from adaqn.core.scaling import Scaling
from adaqn.optim.flat import FlatParameters

Shapes = list[tuple[int, ...] | None]
"""Of one tensor per parameter; ``None`` for a parameter that has none of that name."""


def scaling_tensors(scaling: Scaling, flat: FlatParameters) -> dict[str, Shapes]:
    """Name in the saved state → its shape for each parameter."""
    plan: dict[str, Shapes] = {}
    for index, shape in enumerate(flat.shapes):
        for name, ours in scaling.tensor_shapes(tuple(shape)).items():
            plan.setdefault(f"scaling_{name}", [None] * len(flat.shapes))[index] = tuple(ours)
    taken = {f"scaling_{name}" for name in (*scaling.vector_names, *scaling.number_names)} & set(plan)
    if taken:
        names = sorted(name.removeprefix("scaling_") for name in taken)
        raise ValueError(f"{type(scaling).__name__} has a tensor and a vector or number of the same name: {names}")
    return plan


def new_buffer(shapes: Shapes, flat: FlatParameters) -> Tensor:
    """Zeros for all of them, of the dtype and on the device of the vectors."""
    with torch.inference_mode(False):
        return torch.zeros(_total(shapes), dtype=flat.dtype, device=flat.device)


def cut(buffer: Tensor, shapes: Shapes) -> list[Tensor | None]:
    """One view per parameter."""
    pieces = torch.split(buffer, [0 if shape is None else math.prod(shape) for shape in shapes])
    return [None if shape is None else piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def by_parameter(buffers: Mapping[str, Tensor], plan: dict[str, Shapes], count: int) -> list[dict[str, Tensor]]:
    """For each of ``count`` parameters name → view."""
    entries: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, shapes in plan.items():
        for entry, view in zip(entries, cut(buffers[name], shapes), strict=True):
            if view is not None:
                entry[name] = view
    return entries


def packed_bytes(plan: dict[str, Shapes], flat: FlatParameters) -> int:
    return sum(map(_total, plan.values())) * flat.dtype.itemsize


def _total(shapes: Sequence[tuple[int, ...] | None]) -> int:
    return sum(math.prod(shape) for shape in shapes if shape is not None)
