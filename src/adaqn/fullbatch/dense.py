"""H as a matrix: the memory of BFGS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adaqn.core.checks import choose
from adaqn.core.full_matrix import UPDATES, affordable, fill_, update_
from adaqn.core.outcome import Outcome
from adaqn.core.scaling import Scaling
from adaqn.fullbatch.limited import LimitedMemory
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.saved import Expected


class FullMatrix(LimitedMemory):
    """H in float64, begun from H0.

    Args:
        flat: the parameters, whole in this process.
        scaling: H0, from which H begins, also after a search that failed.
        update: how a pair changes H.
        wide_weights: keep wide copies of low-precision weights.
        waits: as in :class:`LimitedMemory`.
    """

    def __init__(
        self, flat: FlatParameters, scaling: Scaling, *, update: str, wide_weights: bool = False, waits: bool = False
    ) -> None:
        check_whole(flat)
        super().__init__(flat, scaling, 0, wide_weights=wide_weights, waits=waits)
        self.rule = choose("update", update, UPDATES)
        self.made_of = {"update": update, "wide_weights": wide_weights, "waits": waits}
        n = affordable(flat.n)
        self.matrix = torch.zeros(n, n, dtype=torch.float64, device=flat.device)
        self.shared["matrix"] = self.matrix

    def _vectors(self) -> dict[str, Any]:
        return {"size": 0, "dtype": None, "wide_weights": self.made_of["wide_weights"], "waits": self.made_of["waits"]}

    @staticmethod
    def bytes_needed(flat: FlatParameters, scaling: Scaling, **made_of: Any) -> int:
        """Of H, H0 and whatever else is kept between steps."""
        kept = {"size": 0, "dtype": None, "wide_weights": made_of["wide_weights"], "waits": made_of["waits"]}
        return 8 * affordable(flat.n) ** 2 + LimitedMemory.bytes_needed(flat, scaling, **kept)

    def expected(self) -> Expected:
        usual = super().expected()
        shape = (self.flat.n, self.flat.n)
        return replace(usual, shared={**usual.shared, "matrix": shape}, kept_as="the model and update")

    def forget(self) -> None:
        """H begins again from H0."""
        super().forget()
        self.counters.in_matrix = self.counters.begun = 0

    def weigh(self, roots: list[float] | None) -> None:
        """Λ^½ of the groups; H begins again where it moves what must not move, or does not what must."""
        self.scaled.roots = roots
        parts = self.flat.views(self.matrix.diagonal().contiguous())
        held = zip(roots or [1.0] * len(parts), parts, strict=True)
        if self.counters.begun and any(bool(part.any()) != (root > 0.0) for root, part in held if part.numel()):
            self.forget()

    @property
    def knows(self) -> int:
        return self.counters.in_matrix

    @property
    def has_scale(self) -> bool:
        return self.counters.in_matrix > 0

    def direction(self, gradient: Tensor) -> Tensor:
        """−H·g, a new vector."""
        if not self.counters.begun:
            fill_(self.matrix, self.scaled, gradient)
            self.counters.begun = 1
        return self.matrix.mv(gradient.double()).neg_().to(gradient.dtype)

    def descent(self, gradient: Tensor) -> Tensor:
        return self.direction(gradient) if self.is_plain else super().descent(gradient)

    def offer(self, s: Tensor, y: Tensor, along: float = 0.0) -> Outcome:
        """The pair changes H if it tells of positive curvature; ``along`` is s·H⁻¹s."""
        if not self.counters.begun or not update_(
            self.matrix, s, y, self.rule, along, first=self.counters.in_matrix == 0
        ):
            self.counters.skipped += 1
            return Outcome.SKIPPED
        self.counters.stored += 1
        self.counters.in_matrix += 1
        return Outcome.STORED


def check_whole(flat: FlatParameters) -> None:
    if not flat.is_whole:
        raise ValueError(
            "a full matrix needs all parameters in every process, and here each has a part of them: use adaqn.LBFGS"
        )
