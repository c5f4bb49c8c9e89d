"""H from the last curvature pairs on top of γ·Λ^½ H0 Λ^½: the memory of L-BFGS."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from adaqn.core.direction import applied, gram
from adaqn.core.outcome import Outcome
from adaqn.core.pairs import Repair, is_usable
from adaqn.core.scaling import Scaling
from adaqn.fullbatch.events import FORMAT, Counters
from adaqn.parameters.buffers import Layout
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.h0_layout import layout_for
from adaqn.parameters.memory import Memory
from adaqn.parameters.saved import Expected

SMALLEST_COSINE = 1e-10
"""A pair whose s and y are more nearly at right angles is rounding error."""


VECTORS = ("size", "dtype", "wide_weights", "waits")
"""What decides which vectors are kept."""


class ScaledH0:
    """γ·Λ^½ H0 Λ^½ with Λ = lrᵢ/max lr of the param groups."""

    def __init__(self, h0: Any, counters: Counters, flat: FlatParameters) -> None:
        self.h0, self.counters, self.flat = h0, counters, flat
        self.roots: list[float] | None = None
        """Λ^½ by parameter; ``None`` where all step sizes are the same."""

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        """out ← γΛ^½ H0 Λ^½ v."""
        if self.roots is None:
            return applied(self.h0, v, out).mul_(self.counters.gamma)
        return self._times_roots(applied(self.h0, self._times_roots(v.clone()), out)).mul_(self.counters.gamma)

    def square(self, v: Tensor) -> Tensor:
        """v·Λ^½ H0 Λ^½ v, without γ."""
        found: Tensor = self.h0.square(v if self.roots is None else self._times_roots(v.clone()))
        return found

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        """out ← the inverse times v; where Λ is zero nothing moves, and v is zero too."""
        v = v if self.roots is None else self._times_roots(v.clone(), inverse=True)
        found: Tensor = self.h0.apply_inverse(v, out=out)
        if self.roots is not None:
            self._times_roots(found, inverse=True)
        return found.div_(self.counters.gamma)

    def weighed(self, v: Tensor) -> Tensor:
        """v ← Λv."""
        return v if self.roots is None else self._times_roots(self._times_roots(v))

    def _times_roots(self, v: Tensor, *, inverse: bool = False) -> Tensor:
        assert self.roots is not None
        for part, root in zip(self.flat.views(v), self.roots, strict=True):
            part.mul_(root if not inverse else 1.0 / root if root else 0.0)
        return v


class LimitedMemory(Memory):
    """The pairs, H0, and the numbers of a method with both.

    Args:
        flat: the parameters.
        scaling: H0, as yet without vectors.
        size: pairs kept.
        repair: damping of a pair, or ``None``.
        dtype: of the pairs; ``None`` follows the parameters.
        wide_weights: keep wide copies of low-precision weights.
        waits: does a step wait for the gradient behind it until the next call? It does without a line search.
    """

    def __init__(
        self,
        flat: FlatParameters,
        scaling: Scaling,
        size: int,
        *,
        repair: Repair | None = None,
        dtype: torch.dtype | None = None,
        wide_weights: bool = False,
        waits: bool = False,
    ) -> None:
        self.made_of: dict[str, Any] = {
            "size": size,
            "repair": repair,
            "dtype": dtype,
            "wide_weights": wide_weights,
            "waits": waits,
        }
        super().__init__(flat, copy.deepcopy(scaling), vector_plan(scaling, **self._vectors()), size)
        self.repair = repair
        self.count = sum(p.numel() * (2 if p.is_complex() else 1) for p in flat.params)
        """Numbers in all parameters, over all processes."""
        self.counters = Counters()
        self.scaled = ScaledH0(self.h0, self.counters, flat)
        self.frozen = {id(p) for p in flat.params if not p.requires_grad and p.grad is not None}
        """Parameters with a gradient set by hand: they stay here, with one or without (D26)."""
        self.restart()

    def _vectors(self) -> dict[str, Any]:
        return {name: self.made_of[name] for name in VECTORS}

    @staticmethod
    def bytes_needed(flat: FlatParameters, scaling: Scaling, **made_of: Any) -> int:
        """Of pairs, H0 and whatever else is kept between steps."""
        return bytes_kept(flat, scaling, **{name: made_of[name] for name in VECTORS})

    def expected(self) -> Expected:
        return expected_of(self.scaling, self.flat, **self._vectors())

    @torch.no_grad()
    def restart(self) -> None:
        """The weights were changed from outside: the pairs are of other ones, H0 keeps what it has seen."""
        self.forget()
        self.counters.note_loss(None)
        self.counters.pending, self.counters.first_loss = 0, 0.0
        if self.master is not None:
            self.flat.gather(self.master)

    def forget(self) -> None:
        """No pairs any more."""
        self.pairs.clear()
        self.scaling.on_cleared()

    @property
    def knows(self) -> int:
        return len(self.pairs)

    @property
    def has_scale(self) -> bool:
        return bool(self.counters.has_scale)

    @property
    def is_plain(self) -> bool:
        return type(self.scaling) is Scaling

    def weigh(self, roots: list[float] | None) -> None:
        """Λ^½ of the groups, as it is now; pairs that move what must not move any more are dropped."""
        before, self.scaled.roots = self.scaled.roots, roots
        fixed = [i for i, root in enumerate(roots or ()) if root == 0.0]
        if before != roots and fixed and self._moves(fixed):
            self.forget()
            self.counters.pending = 0

    def _moves(self, fixed: list[int]) -> bool:
        """Has a pair, or the step that waits for its gradient, gone along those parameters?"""
        steps = [self.pairs.S, *([self.buffers["pending_s"]] if self.counters.pending else [])]
        gone = [self.flat.views(s)[i].count_nonzero() for s in steps for i in fixed]
        return float(self.flat.reduce(torch.stack(gone).sum().double().reshape(1))) > 0.0

    def see(self, gradient: Tensor, present: list[int]) -> None:
        """H0 learns from the gradient at the point from which the next step is made."""
        if not (self.scaling.learns_from_pairs and self.counters.has_scale):
            self.show_vector_to_h0(gradient, present)

    def direction(self, gradient: Tensor) -> Tensor:
        """−H·g, a new vector."""
        if self.made_of["waits"] and len(self.pairs) and not self.scaling.learns_from_pairs:
            # H0 has learnt since the pair was stored; without a search nothing else shortens a step for that.
            slot = self.pairs.order[-1]
            square = self.scaled.square(self.pairs.Y[slot].to(gradient.dtype))
            sy, (y_h0_y,) = float(self.pairs.gram[slot, slot]), self.flat.settle(square.double().reshape(1)).tolist()
            self.counters.gamma = sy / y_h0_y if is_usable(sy, y_h0_y) else self.counters.gamma
        out = torch.empty_like(gradient)
        return gram(gradient.clone(), self.pairs, self.scaled, out=out, reduce=self.flat.reduce).neg_()

    def descent(self, gradient: Tensor) -> Tensor:
        """−Λg, a new vector."""
        return self.scaled.weighed(gradient.neg())

    def offer(self, s: Tensor, y: Tensor, along: float = 0.0) -> Outcome:
        """The pair is stored if it tells of positive curvature, and γ follows it; y may come back damped.

        ``along`` is s·H⁻¹s, which limited memory has no use for.
        """
        if self.repair is not None:
            self.repair(s, y, self.scaled, self.flat.settle)  # type: ignore[arg-type]
        ss, sy, yy = self.flat.settle(torch.stack([s.dot(s), s.dot(y), y.dot(y)]).double()).tolist()
        usable = is_usable(sy, yy) and sy > SMALLEST_COSINE * ss**0.5 * yy**0.5
        if not usable:
            self.counters.skipped += 1
            return Outcome.SKIPPED
        self.pairs.push(s, y)
        self.counters.stored += 1
        self.scaling.on_stored(sy, yy)
        square = None
        if self.scaling.learns_from_pairs:
            square = self.show_pair_to_h0(s, y, math.sqrt(ss / self.count))
        if square is None or self.scaled.roots is not None:
            square = self.scaled.square(y)
        (y_h0_y,) = self.flat.settle(square.double().reshape(1)).tolist()
        if is_usable(sy, y_h0_y):
            self.counters.gamma, self.counters.has_scale = sy / y_h0_y, 1
        return Outcome.STORED

    def wait_for_gradient(self, s: Tensor, gradient: Tensor) -> None:
        """Keep a step and the gradient before it: the one behind it comes with the next call."""
        self.buffers["pending_s"].copy_(s)
        self.buffers["pending_gradient"].copy_(gradient)
        self.counters.pending = 1

    def pair_that_waited(self, gradient: Tensor) -> None:
        """Store the pair of the last step, whose gradient has come."""
        if self.counters.pending:
            self.counters.pending = 0
            self.offer(self.buffers["pending_s"], gradient - self.buffers["pending_gradient"])

    def read_weights(self, out: Tensor) -> Tensor:
        """out ← the weights, the wide ones where there are such."""
        return self.flat.gather(out) if self.master is None else out.copy_(self.master)

    # ------------------------------------------------------------------ saving

    def numbers(self, index: int) -> dict[str, float]:
        return {"format": FORMAT, **asdict(self.counters), **super().numbers(index)}

    def load_numbers(self, saved: Sequence[dict[str, Any]]) -> None:
        super().load_numbers(saved)
        for name, now in asdict(self.counters).items():
            setattr(self.counters, name, type(now)(saved[0][name]))

    def __getstate__(self) -> dict[str, Any]:
        # Views of one buffer come out of a pickle as separate tensors, so only the buffers go in.
        names = ("flat", "scaling", "made_of", "buffers", "shared")
        parts = {name: getattr(self, name) for name in names}
        return parts | {"numbers": [self.numbers(i) for i in range(len(self.flat.params))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["flat"], state["scaling"], **state["made_of"])
        for name, buffer in state["buffers"].items():
            self.buffers[name].copy_(buffer)
        for name, tensor in state["shared"].items():
            self.shared[name].copy_(tensor)
        self.load_numbers(state["numbers"])


def vector_plan(scaling: Scaling, size: int, *, dtype: torch.dtype | None, wide_weights: bool, waits: bool) -> Layout:
    """Every buffer as long as the parameters that is kept between steps."""
    one = ((), None, None)
    plan: Layout = {"pairs_s": ((size,), dtype, None), "pairs_y": ((size,), dtype, None)}
    plan |= {f"scaling_{name}": one for name in scaling.vector_names}
    if waits:
        plan |= {"pending_s": one, "pending_gradient": one}
    if wide_weights:
        plan["master"] = one
    return plan


def expected_of(scaling: Scaling, flat: FlatParameters, size: int, **vectors: Any) -> Expected:
    """What a saved state for those parameters holds."""
    layout = layout_for(flat.for_scaling(scaling), scaling)
    return Expected(
        FORMAT,
        FORMAT,
        {name: rows for name, (rows, _, _) in vector_plan(scaling, size, **vectors).items()},
        layout.expected,
        {"gram": (size, size)},
        number_names(scaling),
        ("loss",),
        {"pairs": size},
        layout.names,
        "the model and history_size",
    )


def own_names(memory: LimitedMemory) -> set[str]:
    """By which names our part of the state of a parameter is saved."""
    e = memory.expected()
    return {*e.rows, *e.tensors, *e.shared, *e.numbers, *e.also}


def bytes_kept(flat: FlatParameters, scaling: Scaling, size: int, **vectors: Any) -> int:
    """Of pairs, H0 and whatever else is kept between steps."""
    total_bytes = 8 * size**2
    h0_flat = flat.for_scaling(scaling)
    for name, (rows, dtype, _) in vector_plan(scaling, size, **vectors).items():
        n = h0_flat.n if name.startswith("scaling_") else flat.n
        total_bytes += torch.Size(rows).numel() * n * (dtype or flat.dtype).itemsize
    matrices = layout_for(h0_flat, scaling).count
    gathered = 2 * h0_flat.n if h0_flat is not flat else 0  # whole vectors to work with
    return total_bytes + (matrices + gathered) * flat.dtype.itemsize + flat.bytes_of_copy


def number_names(scaling: Scaling) -> set[str]:
    """The plain numbers in the saved state of each parameter."""
    of_scaling = {f"scaling_{name}" for name in scaling.number_names}
    return {"format", "pairs_start", "pairs_size", *(field.name for field in fields(Counters)), *of_scaling}
