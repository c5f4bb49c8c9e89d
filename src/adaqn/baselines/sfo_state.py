"""What SFO keeps between steps, how large it is, and how it is saved and loaded."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from adaqn.baselines.sfo_model import SumModel, padded, shapes
from adaqn.baselines.sfo_options import SFOOptions, SFOStats
from adaqn.baselines.sfo_subspace import Subspace, norm
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.saved import LARGEST_WHOLE, check_number, check_range, check_tensor

FORMAT = 1
ROOM = 3
"""Directions that one step may add: two gradients, and a change of the weights from outside."""


@dataclass
class Numbers:
    """The plain numbers of the state."""

    steps: int = 0
    calls: int = 0
    """Of closures that gave finite values."""
    rejected: int = 0
    nonfinite: int = 0
    nonfinite_in_row: int = 0
    collapses: int = 0
    since_growth: int = 0
    last_index: int = -1
    step_scale: float = 1.0
    distance: float = 0.0
    """The length of the path so far."""
    gain: float = 0.0
    """By how much the model expected the objective to fall in the last step."""
    size: int = 0
    """The dimension of the subspace."""


def dimensions(batches: int, n: int) -> int:
    """K_max = 3N + 3, half more than K_min = 2N + 2, which holds a position and a gradient of every minibatch."""
    smallest = 2 * batches + 2
    return min(max(math.ceil(1.5 * smallest), smallest + ROOM), n)


def small_shapes(batches: int, K: int, history_size: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The tensors of the state that are not as long as the parameters."""
    return {
        **shapes(batches, K, history_size),
        "active": ((batches,), torch.bool),
        "barred_since": ((batches,), torch.int64),
        "x": ((K,), torch.float64),
        "x_prior": ((K,), torch.float64),
    }


def planned_bytes(flat: FlatParameters, batches: int, history_size: int) -> int:
    K = dimensions(batches, flat.n)
    small = small_shapes(batches, K, history_size).values()
    return (K + 1) * flat.n * flat.dtype.itemsize + sum(math.prod(shape) * dtype.itemsize for shape, dtype in small)


class SFOState:
    """The subspace, the model in it, where the parameters are and were, and the numbers.

    ``x`` are the coordinates of the parameters, ``x_prior`` those of ``prior``, the parameters
    before the last step. Positions are known by their differences, which are all that the model
    needs: steps far shorter than the parameters would drown in the rounding of the parameters.
    """

    def __init__(self, flat: FlatParameters, o: SFOOptions) -> None:
        batches, K, eps = o.batches, dimensions(o.batches, flat.n), torch.finfo(flat.dtype).eps
        self.flat, self.numbers = flat, Numbers()
        self.model = SumModel(batches, K, o.history_size, float(o.initial_curvature), float(o.max_condition), eps)
        self.subspace = Subspace(flat.new(K))
        self.prior = flat.new()
        self.active = torch.arange(batches) < o.initial_active
        self.barred_since = torch.full((batches,), -batches)
        self.x = torch.zeros(K, dtype=torch.float64)
        self.x_prior = torch.zeros(K, dtype=torch.float64)

    # ------------------------------------------------------------------ places

    def locate(self, w: Tensor) -> Tensor:
        """The coordinates of parameters; a direction from outside the subspace is taken in."""
        offset = w - self.prior
        inside, length = self.subspace.project(offset), norm(offset)
        outside = length**2 - float(inside @ inside)
        rounding = 100.0 * torch.finfo(w.dtype).eps * norm(w)
        if outside > 0.01 * length**2 and length > rounding:
            self.subspace.include(offset)
            inside = self.subspace.project(offset)
        return self.x_prior + self.padded(inside)

    def padded(self, c: Tensor) -> Tensor:
        return padded(c, len(self.x))

    def make_room(self, min_kept: float) -> None:
        """Collapse a subspace that is nearly full to the last positions and gradients, and the path here."""
        size = self.subspace.size
        if self.subspace.whole or self.subspace.room >= ROOM:
            return
        seen = self.model.evaluations > 0
        keep = [self.model.gradients[seen], self.model.positions[seen] - self.x, (self.x_prior - self.x)[None]]
        T = self.subspace.collapse(torch.cat(keep)[:, :size])
        self.model.rotate(T, self.x, min_kept)
        self.x_prior = self.padded(T @ (self.x_prior - self.x)[:size])
        self.x = torch.zeros_like(self.x)
        self.numbers.collapses += 1

    def restart(self) -> None:
        """Back to where the last step began, with no model of anything; the totals stay."""
        for tensor in (*self.model.tensors.values(), self.x, self.x_prior):
            tensor.zero_()
        self.barred_since.fill_(-len(self.active))
        self.subspace.clear()
        self.numbers.step_scale, self.numbers.gain = 1.0, 0.0
        self.flat.scatter(self.prior)

    def is_barred(self) -> Tensor:
        """Minibatches that were not finite within the last pass."""
        return self.numbers.steps - self.barred_since < len(self.active)

    def stats(self) -> SFOStats:
        c = self.numbers
        return SFOStats(
            c.steps, c.calls, c.rejected, c.nonfinite, int(self.active.sum()), int(self.model.pairs.sum()),
            self.subspace.size, c.collapses, c.step_scale,
        )  # fmt: skip

    # ------------------------------------------------------------------ saving and loading

    def small_tensors(self) -> dict[str, Tensor]:
        own = {"active": self.active, "barred_since": self.barred_since, "x": self.x, "x_prior": self.x_prior}
        return {**self.model.tensors, **own}

    def per_parameter(self) -> list[dict[str, Any]]:
        """State by parameter: slices of the long vectors; what has no such shape is kept with the first."""
        self.numbers.size = self.subspace.size
        rows = zip(self.flat.views(self.subspace.basis), self.flat.views(self.prior), strict=True)
        entries: list[dict[str, Any]] = [{"basis": basis, "prior": prior} for basis, prior in rows]
        entries[0].update(self.small_tensors(), format=FORMAT, **asdict(self.numbers))
        return entries

    def check(self, entries: list[dict[str, Any]]) -> None:
        """Do these entries fit? One clear error if not."""
        for index, (ours, saved) in enumerate(zip(self.per_parameter(), entries, strict=True)):
            version = check_number(index, "format", saved.get("format", FORMAT))
            if index == 0 and version != FORMAT:
                raise ValueError(
                    f"the saved state of SFO has format {version} and this version of adaqn reads {FORMAT}: "
                    "load it with the adaqn that wrote it"
                )
            if set(ours) != set(saved):
                raise ValueError(
                    f"the state of parameter {index} was not saved by this SFO: "
                    f"missing {sorted(set(ours) - set(saved))}, unknown {sorted(map(str, set(saved) - set(ours)))}"
                )
            for name, value in ours.items():
                if isinstance(value, Tensor):
                    kept_as = "the model, batches and history_size"
                    check_tensor(index, name, saved[name], tuple(value.shape), kept_as=kept_as, dtype=value.dtype)
                else:
                    check_number(index, name, saved[name], signed=name == "last_index")
        self._check_ranges(entries[0])

    def _check_ranges(self, saved: dict[str, Any]) -> None:
        """Counts are whole, and what says where something lies says so of a place that there is."""
        limits = {"size": self.subspace.basis.shape[0], "last_index": len(self.active) - 1}
        for field in fields(Numbers):
            if field.type == "int":
                smallest = {"last_index": -1, "size": self.subspace.size}.get(field.name, 0)
                check_range(0, field.name, saved[field.name], limits.get(field.name, LARGEST_WHOLE), smallest)

    def restore(self, entries: list[dict[str, Any]]) -> None:
        """Copy checked entries into this state."""
        for ours, saved in zip(self.per_parameter(), entries, strict=True):
            for name, value in ours.items():
                if isinstance(value, Tensor):
                    value.copy_(saved[name])
        kinds = {"int": int, "float": float}
        self.numbers = Numbers(**{f.name: kinds[str(f.type)](entries[0][f.name]) for f in fields(Numbers)})
        self.subspace.size = self.numbers.size
