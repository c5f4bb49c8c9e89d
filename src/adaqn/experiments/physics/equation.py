"""What a differential equation on a rectangle is: its residual, its conditions, and a solution to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Rows = Callable[[Tensor, Tensor | None], Tensor]
"""(u at the points of a condition, its first derivatives where asked for) → what should be zero."""


@dataclass(frozen=True)
class Condition:
    """At the start, at the boundary: points of shape (count, 2) in float64, and what should be zero there."""

    points: Tensor
    rows: Rows


@dataclass(frozen=True)
class Solution:
    """u on a grid: ``values[i, j]`` is at ``(x[j], y[i])``, where y is the time if there is one."""

    x: Tensor
    y: Tensor
    values: Tensor

    def points(self) -> Tensor:
        """Of shape (rows · columns, 2), in the order of ``values.flatten()``."""
        y, x = torch.meshgrid(self.y, self.x, indexing="ij")
        return torch.stack([x.flatten(), y.flatten()], dim=1)


class Equation:
    """u(x, y) on a rectangle, y the time of those that evolve. Subclasses say what holds inside and at its edges."""

    low: tuple[float, float]
    high: tuple[float, float]
    axes = ("x", "t")
    second: tuple[int, ...] = ()
    """The inputs by which a second derivative is needed."""
    slopes = False
    """Does a condition need first derivatives?"""

    def residual(self, u: Tensor, first: Tensor, second: dict[int, Tensor], source: Tensor | None) -> Tensor:
        """What should be zero inside."""
        raise NotImplementedError

    def source(self, points: Tensor) -> Tensor | None:
        """A right-hand side that depends on the point alone."""
        return None

    def conditions(self, count: int) -> list[Condition]:
        """With so many points in all, equally spaced."""
        raise NotImplementedError

    def solution(self) -> Solution:
        raise NotImplementedError

    # ------------------------------------------------------------------ points

    def inside(self, count: int, seed: int) -> Tensor:
        """The points at which the equation is to hold."""
        low, high = torch.tensor(self.low, dtype=torch.float64), torch.tensor(self.high, dtype=torch.float64)
        return low + (high - low) * sobol(count, seed)

    def sample(self, count: int, seed: int, number: int) -> Tensor:
        """The points of sample ``number``, each drawn for itself: what two samples differ by is noise."""
        low, high = torch.tensor(self.low, dtype=torch.float64), torch.tensor(self.high, dtype=torch.float64)
        return low + (high - low) * torch.from_numpy(np.random.default_rng([seed, number]).random((count, 2)))

    def edge(self, axis: int, at: float, count: int) -> Tensor:
        """Points with that coordinate fixed and the other one from end to end."""
        points = torch.full((count, 2), at, dtype=torch.float64)
        points[:, 1 - axis] = torch.linspace(self.low[1 - axis], self.high[1 - axis], count, dtype=torch.float64)
        return points

    def grid(self, columns: int, rows: int) -> tuple[Tensor, Tensor]:
        x, y = (
            torch.linspace(self.low[axis], self.high[axis], count, dtype=torch.float64)
            for axis, count in ((0, columns), (1, rows))
        )
        return x, y


def sobol(count: int, seed: int) -> Tensor:
    """Scrambled Sobol points of the unit square: a fixed set for a seed, without the clusters of a random one."""
    engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    return engine.draw(count, dtype=torch.float64)


def given(points: Tensor, values: Tensor) -> Condition:
    """u has these values."""
    return Condition(points, lambda u, _: u - values.to(u))


def same_at_both(left: Tensor, right: Tensor, *, slopes: bool = False) -> Condition:
    """u is periodic, and u_x too if ``slopes`` says so."""

    def rows(u: Tensor, first: Tensor | None) -> Tensor:
        half = len(left)
        difference = u[:half] - u[half:]
        if not slopes:
            return difference
        assert first is not None
        return torch.cat([difference, first[:half, 0] - first[half:, 0]])

    return Condition(torch.cat([left, right]), rows)
