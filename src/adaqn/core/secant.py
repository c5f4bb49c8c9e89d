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

    def __init__(self, decay: float = 0.95, eps: float = 1e-8) -> None:
        super().__init__(decay, eps)
        self.pairs = 0

    def reset(self) -> None:
        super().reset()
        self.pairs = 0

    def update(self, g: Tensor) -> None:
        self._add(g, torch.ones_like(g))

    def learn(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        if self.pairs == 0:  # what the first gradients said has another scale
            super().reset()
        self.pairs += 1
        self._add(y / rms, s / rms)
        return None

    def _add(self, y: Tensor, s: Tensor) -> None:
        super().update(y)
        self.vectors["step_square_avg"].mul_(self.decay).addcmul_(s, s, value=1.0 - self.decay)

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

    def _refresh(self, i: int) -> int:
        return SELDOM if self.by_size and max(self.matrices[i]) > SMALL else self.refresh

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        self._add(g, torch.ones_like(g), present)

    def learn(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        rotated = self._add(y / rms, s / rms, range(len(self.shapes)))
        return self._square(rotated, self.roots(torch.empty_like(y))) * rms**2

    def _add(self, y: Tensor, s: Tensor, present: Sequence[int]) -> list[Tensor]:
        """Returns the parts of y in the coordinates of the bases."""
        changes, steps = self._matrices(y), self._matrices(s)
        moments = [self._matrices(self.vectors[name]) for name in self.vector_names]
        rotated = []
        for i in present:
            of_changes, of_steps = moments[0][i], moments[1][i]
            self._turn(i, [of_changes, of_steps])
            rotated.append(self._add_square(i, of_changes, changes[i]))
            self._add_square(i, of_steps, steps[i])
            self._add_to_averages(i, changes[i])
        return rotated

    def roots(self, out: Tensor) -> Tensor:
        """out ← √(V_y/V_s) + ε, in the coordinates of the bases."""
        return self._lifted(quotient(self, out))


def quotient(scaling: Adam, out: Tensor) -> Tensor:
    """out ← √(avg y²/avg s²) + ε; the corrections of both averages for their start cancel."""
    steps = scaling.vectors["step_square_avg"]
    floors = [FLOOR * (1.0 - scaling.decay ** max(step, 1)) for step in scaling.steps]
    for part, size, floor in zip(torch.split(out, scaling.sizes), scaling.sizes, floors, strict=True):
        if size:
            part.fill_(floor)
    return torch.div(scaling.vectors["square_avg"], out.add_(steps), out=out).sqrt_().add_(scaling.eps)
