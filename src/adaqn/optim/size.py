"""How many bytes an optimizer keeps, and for what: known before there is any of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaqn.core.pairs import TowardsH0
from adaqn.optim.flat import FlatParameters
from adaqn.optim.memory import Layout, layout
from adaqn.optim.options import Options
from adaqn.optim.packed import packed_bytes, scaling_tensors


@dataclass(frozen=True)
class Size:
    """Bytes by what they are for."""

    pairs: int
    gradients: int
    """F̃, or what another curvature keeps of them."""
    h0: int
    others: int
    """Anchor, average, momentum, wide weights, work space."""

    @property
    def total(self) -> int:
        return self.pairs + self.gradients + self.h0 + self.others


def plan_of(o: Options) -> Layout:
    """Every buffer as long as the parameters that these options ask for."""
    return layout(o.memory_size, o.scaling, o.curvature, o.precision, o.momentum)


def size_of_state(flat: FlatParameters, o: Options, *, accepted: bool = False) -> Size:
    """History and work space of this process; ``accepted`` is the vector that ``averaged()`` keeps."""
    parts = {"pairs": 8 * o.memory_size**2, "gradients": 0, "h0": 0, "others": 0}
    for name, (rows, dtype, _) in plan_of(o).items():
        part = "pairs" if name.startswith("pairs_") else "gradients" if name == "fisher" else "others"
        part = "h0" if name.startswith("scaling_") else part
        parts[part] += torch.Size(rows).numel() * flat.n * (dtype or flat.dtype).itemsize
    h0_flat = flat.for_scaling(o.scaling)
    parts["h0"] += packed_bytes(scaling_tensors(o.scaling, h0_flat), h0_flat)
    if h0_flat is not flat:  # H0's vectors are whole, and it has two more to work with
        kept = len(o.scaling.vector_names)
        parts["h0"] += ((kept + 2) * h0_flat.n - kept * flat.n) * flat.dtype.itemsize
    vectors = accepted + isinstance(o.repair, TowardsH0)  # H0⁻¹s, while a pair is damped
    parts["others"] += vectors * flat.n * flat.dtype.itemsize
    return Size(**parts)
