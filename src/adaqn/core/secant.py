"""H0 from pairs instead of gradients: how far the weights went for each unit by which the gradient changed.

√g² says how large gradients are, y/s how fast they change. Near a minimum the first goes to zero and the second to the
curvature, whose inverse H0 stands for. Pairs count per unit of length: both s and y are divided by the root mean square
of s first, so that a long step says no more than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.core.blocks import BLOCK_SIZE
from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adam

FLOOR = 1e-2
"""The least mean square of a coordinate of the steps, in units of the mean over all: where the weights have hardly
moved, the change of the gradient comes from other coordinates and says nothing of this one."""

SMALL, SELDOM = 128, 5
"""Sides up to which the bases are refreshed by every pair, and how many pairs refresh longer ones once."""


class Secant(Adam):
    """H0 = √(avg s²/avg y²), element-wise. Until there is a pair it is 1/|g|.

    Args:
        decay: β of both running averages.
        eps: added to √(avg y²/avg s²).
    """

    vector_names = ("square_avg", "step_square_avg")
    number_names = ("step", "pairs")
    learns_from_pairs = True
    skips_by_itself = True

    def __init__(self, decay: float = 0.95, eps: float = 1e-8) -> None:
        super().__init__(decay, eps)
        self.pairs = 0

    def reset(self) -> None:
        super().reset()
        self.pairs = 0

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        self._add(g, torch.ones_like(g) if self.ok is None else self.ok.to(g.dtype).expand_as(g), present)

    def learn(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        if self.pairs == 0:  # what the first gradients said has another scale
            super().reset()
        self.pairs += 1
        self._add(y / rms, s / rms, range(len(self.shapes)))
        return None

    def _add(self, y: Tensor, s: Tensor, present: Sequence[int]) -> None:
        super().update_some(y, present)
        self._average("step_square_avg", s, present)

    def roots(self, out: Tensor) -> Tensor:
        """out ← √(avg y²/avg s²) + ε."""
        return quotient(self, out)

    def numbers(self, index: int) -> dict[str, float]:
        return {**super().numbers(index), "pairs": self.pairs}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        super().load_numbers(index, numbers)
        self.pairs = int(numbers["pairs"])


class KroneckerSecant(Kronecker):
    r"""The same in a basis of its own for each matrix: the eigenvectors of the averages of Y Yᵀ and YᵀY.

    .. math::
        H_0 v = Q_L \Big( \frac{Q_L^T v\, Q_R}{\sqrt{V_y / V_s} + \epsilon} \Big) Q_R^T, \quad
        V_y = \mathrm{avg}\big((Q_L^T Y Q_R)^2\big), \quad V_s = \mathrm{avg}\big((Q_L^T S Q_R)^2\big)

    with S and Y the parts of a pair that belong to the matrix. What :class:`adaqn.Kronecker` does with gradients, this
    does with their changes; the first basis, and H0 until there is a pair, are those of the first gradient.

    Args:
        decay: β of the running averages.
        eps: added to √(V_y/V_s).
        refresh: pairs between two refreshments of the bases; by default every pair refreshes those of matrices with
            sides of up to 128, where that is cheap, and every fifth those of larger ones.
        block_size: the longest side of a block.
        basis_decay: β of the averages that the bases come from; by default ``decay``.
    """

    vector_names = ("square_avg", "step_square_avg")
    learns_from_pairs = True
    starts_anew = True

    def __init__(
        self,
        decay: float = 0.95,
        eps: float = 1e-8,
        *,
        refresh: int | None = None,
        block_size: int = BLOCK_SIZE,
        basis_decay: float | None = None,
        **removed: Any,
    ) -> None:
        often = 1 if refresh is None else refresh
        super().__init__(decay, eps, refresh=often, block_size=block_size, basis_decay=basis_decay, **removed)
        self.by_size = refresh is None

    def _refresh(self, shape: tuple[int, int]) -> int:
        return SELDOM if self.by_size and max(shape) > SMALL else self.refresh

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        ones = torch.ones_like(g) if self.ok is None else self.ok.to(g.dtype).expand_as(g).contiguous()
        self._see({"square_avg": g, "step_square_avg": ones}, present)

    def learn(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        changes, turned = y / rms, list[Tensor]()
        self._see({"square_avg": changes, "step_square_avg": s / rms}, range(len(self.shapes)), turned)
        return self._square(turned, changes) * rms**2

    def _plain_roots(self, out: Tensor) -> Tensor:
        """out ← √(V_y/V_s) + ε, in the coordinates of the bases."""
        return quotient(self, out)


def quotient(scaling: Adam, out: Tensor) -> Tensor:
    """out ← √(avg y²/avg s²) + ε; the corrections of both averages for their start cancel."""
    out.copy_(scaling.vectors["step_square_avg"])
    floors = scaling.ages.powers(scaling.decay).neg_().add_(1.0).mul_(FLOOR)
    torch._foreach_add_(*scaling._by_age(out, floors))
    return torch.div(scaling.vectors["square_avg"], out, out=out).sqrt_().add_(scaling.eps)
