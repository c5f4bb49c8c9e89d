"""Buffers as long as the parameters, and tensors of any shape that H0 keeps for each of them.

Vectors as long as all parameters together are rows of flat buffers. Tensors of any shape, which a scaling keeps for
each parameter, lie one behind the other in one buffer per name, those of parameters with the same shapes side by side:
a stack of them is a view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from adaqn.core.scaling import Scaling
from adaqn.parameters.flat import FlatParameters

Layout = dict[str, tuple[tuple[int, ...], torch.dtype | None, torch.device | None]]
"""Name → (rows, dtype, device) of a buffer as long as the parameters; ``None`` follows them."""
Shapes = list[tuple[int, ...] | None]
"""Of one tensor per parameter; ``None`` for a parameter that has none of that name."""


def tensor_layout(scaling: Scaling, parts: Sequence[Sequence[int]]) -> dict[str, Shapes]:
    """Name in the saved state → its shape for each part of a vector, of those shapes."""
    plan: dict[str, Shapes] = {}
    for index, shape in enumerate(parts):
        for name, ours in scaling.tensor_shapes(tuple(shape)).items():
            plan.setdefault(f"scaling_{name}", [None] * len(parts))[index] = tuple(ours)
    taken = {f"scaling_{name}" for name in (*scaling.vector_names, *scaling.number_names)} & set(plan)
    if taken:
        names = sorted(name.removeprefix("scaling_") for name in taken)
        raise ValueError(f"{type(scaling).__name__} has a tensor and a vector or number of the same name: {names}")
    return plan


def tensor_buffer(shapes: Shapes, flat: FlatParameters) -> Tensor:
    """Zeros for all of them, of the dtype and on the device of the vectors."""
    with torch.inference_mode(False):
        return torch.zeros(total(shapes), dtype=flat.dtype, device=flat.device)


def tensors_by_parameter(buffers: Mapping[str, Tensor], plan: dict[str, Shapes], count: int) -> list[dict[str, Tensor]]:
    """For each of ``count`` parameters name → view."""
    entries: list[dict[str, Tensor]] = [{} for _ in range(count)]
    order = sorted(range(count), key=lambda i: [shapes[i] or () for shapes in plan.values()])
    for name, shapes in plan.items():
        pieces = torch.split(buffers[name], [math.prod(shapes[i] or (0,)) for i in order])
        for i, piece in zip(order, pieces, strict=True):
            shape = shapes[i]
            if shape is not None:
                entries[i][name] = piece.view(shape)
    return entries


def total(shapes: Sequence[tuple[int, ...] | None]) -> int:
    """The numbers in all of them."""
    return sum(math.prod(shape) for shape in shapes if shape is not None)
