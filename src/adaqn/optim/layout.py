"""What a quasi-Newton optimizer keeps: which vectors and numbers by which names, and how many bytes that is."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from adaqn.core.pairs import TowardsH0
from adaqn.optim.events import Counters
from adaqn.optim.method import Method
from adaqn.parameters.buffers import Layout
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.h0_layout import layout_for

WORK_VECTORS = 2
"""Vectors whose content matters only within a step: they are not saved."""


def vector_layout(method: Method, *, momentum: bool) -> Layout:
    """Every buffer as long as the parameters that is kept between steps."""
    storage, one = method.storage, ((), None, None)
    history = ((method.memory_size,), storage.history_dtype, None)
    plan: Layout = {"anchor": one, "window": one, "pairs_s": history, "pairs_y": history}
    if method.curvature.rows:
        device = None if storage.fisher_device is None else torch.device(storage.fisher_device)
        plan["fisher"] = ((method.curvature.rows,), storage.fisher_dtype, device)
    plan |= {f"scaling_{name}": one for name in method.scaling.vector_names}
    if momentum:
        plan["momentum"] = one
    if storage.master_weights:
        plan["master"] = one
    return plan


def vectors_kept(method: Method) -> int:
    """About how many vectors as long as the parameters there are, work space and a copy of the weights among them."""
    rows = (torch.Size(rows).numel() for rows, _, _ in vector_layout(method, momentum=True).values())
    return sum(rows) + WORK_VECTORS + 2


def number_names(method: Method, *, momentum: bool) -> set[str]:
    """The plain numbers in the saved state of each parameter."""
    return {
        *("format", "keeps_accepted", "window_count", "window_steps", "pairs_start", "pairs_size"),
        *(field.name for field in fields(Counters)),
        *(f"curvature_{name}" for name in method.curvature.number_names),
        *(f"scaling_{name}" for name in method.scaling.number_names),
        *(("momentum_step",) if momentum else ()),
    }


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


def size_of_state(
    flat: FlatParameters, method: Method, *, momentum: bool, accepted: bool = False, iterate: bool = False
) -> Size:
    """History and work space of this process; ``accepted`` and ``iterate`` are kept from when they are needed."""
    parts = {"pairs": 8 * method.memory_size**2, "gradients": 0, "h0": 0, "others": 0}
    for name, (rows, dtype, _) in vector_layout(method, momentum=momentum).items():
        part = "pairs" if name.startswith("pairs_") else "gradients" if name == "fisher" else "others"
        part = "h0" if name.startswith("scaling_") else part
        parts[part] += torch.Size(rows).numel() * flat.n * (dtype or flat.dtype).itemsize
    h0_flat = flat.for_scaling(method.scaling)
    parts["h0"] += layout_for(h0_flat, method.scaling).count * h0_flat.dtype.itemsize
    if h0_flat is not flat:  # H0's vectors are whole, and it has two more to work with
        kept = len(method.scaling.vector_names)
        parts["h0"] += ((kept + 2) * h0_flat.n - kept * flat.n) * flat.dtype.itemsize
    vectors = WORK_VECTORS + (accepted or method.averaging > 0.0) + iterate
    vectors += isinstance(method.repair, TowardsH0) and method.memory_size > 0  # H0⁻¹s, while a pair is damped
    parts["others"] += vectors * flat.n * flat.dtype.itemsize + flat.bytes_of_copy
    return Size(**parts)
