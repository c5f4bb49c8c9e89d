"""The six equations, as papers on physics-informed networks pose them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from adaqn.experiments.physics import solvers
from adaqn.experiments.physics.equation import Condition, Equation, Solution, given, same_at_both

COLUMNS, ROWS, SQUARE = 256, 51, 101
"""Of the grids on which errors are measured: space by time, or a square."""


class Evolution(Equation):
    """Half of the points of the conditions are at the start, a quarter at each end."""

    def start(self, x: Tensor) -> Tensor:
        """u(x, 0)."""
        raise NotImplementedError

    def ends(self, left: Tensor, right: Tensor) -> Condition:
        """Zero at both, unless a subclass says otherwise."""
        return given(torch.cat([left, right]), torch.zeros(2 * len(left), dtype=torch.float64))

    def conditions(self, count: int) -> list[Condition]:
        first = self.edge(1, self.low[1], count - 2 * (count // 4))
        left, right = (self.edge(0, end[0], count // 4) for end in (self.low, self.high))
        return [given(first, self.start(first[:, 0])), self.ends(left, right)]


class Burgers(Evolution):
    """u_t + u u_x = (0.01/π) u_xx; a shock forms at x = 0."""

    low, high, second = (-1.0, 0.0), (1.0, 1.0), (0,)
    viscosity = 0.01 / math.pi

    def residual(self, u: Tensor, first: Tensor, second: dict[int, Tensor], source: Tensor | None) -> Tensor:
        return first[:, 1] + u * first[:, 0] - self.viscosity * second[0]

    def start(self, x: Tensor) -> Tensor:
        return -torch.sin(math.pi * x)

    def solution(self) -> Solution:
        x, t = self.grid(COLUMNS, ROWS)
        return Solution(x, t, torch.from_numpy(solvers.burgers(x.numpy(), t.numpy(), self.viscosity)))


class Convection(Evolution):
    """u_t + 30 u_x = 0, on which plain physics-informed networks are known to fail."""

    low, high = (0.0, 0.0), (2.0 * math.pi, 1.0)
    speed = 30.0

    def residual(self, u: Tensor, first: Tensor, second: dict[int, Tensor], source: Tensor | None) -> Tensor:
        return first[:, 1] + self.speed * first[:, 0]

    def start(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def ends(self, left: Tensor, right: Tensor) -> Condition:
        return same_at_both(left, right)

    def solution(self) -> Solution:
        x, t = self.grid(COLUMNS, ROWS)
        return Solution(x, t, torch.sin(x[None, :] - self.speed * t[:, None]))


class AllenCahn(Evolution):
    """u_t = 10⁻⁴ u_xx + 5 (u − u³), periodic: sharp interfaces between −1 and 1."""

    low, high, second, slopes = (-1.0, 0.0), (1.0, 1.0), (0,), True

    def residual(self, u: Tensor, first: Tensor, second: dict[int, Tensor], source: Tensor | None) -> Tensor:
        return first[:, 1] - 1e-4 * second[0] - 5.0 * (u - u**3)

    def start(self, x: Tensor) -> Tensor:
        return x**2 * torch.cos(math.pi * x)

    def ends(self, left: Tensor, right: Tensor) -> Condition:
        return same_at_both(left, right, slopes=True)

    def solution(self) -> Solution:
        points, t = 2048, np.linspace(0.0, 1.0, ROWS)
        every = points // COLUMNS
        values = torch.from_numpy(solvers.allen_cahn(points, t, steps=4)[:, ::every].copy())
        x = torch.linspace(-1.0, 1.0, COLUMNS + 1, dtype=torch.float64)[:-1]
        return Solution(x, torch.from_numpy(t), values)


class Wave(Evolution):
    """u_tt = 4 u_xx with two standing waves, of which the second swings four times as fast."""

    low, high, second, slopes = (0.0, 0.0), (1.0, 1.0), (0, 1), True

    def residual(self, u: Tensor, first: Tensor, second: dict[int, Tensor], source: Tensor | None) -> Tensor:
        return second[1] - 4.0 * second[0]

    def start(self, x: Tensor) -> Tensor:
        return torch.sin(math.pi * x) + 0.5 * torch.sin(4.0 * math.pi * x)

    def conditions(self, count: int) -> list[Condition]:
        at_start, ends = super().conditions(count)

        def at_rest(u: Tensor, first: Tensor | None) -> Tensor:
            assert first is not None
            return first[:, 1]

        return [at_start, Condition(at_start.points, at_rest), ends]

    def solution(self) -> Solution:
        x, t = self.grid(COLUMNS, ROWS)
        slow = torch.sin(math.pi * x)[None, :] * torch.cos(2.0 * math.pi * t)[:, None]
        fast = torch.sin(4.0 * math.pi * x)[None, :] * torch.cos(8.0 * math.pi * t)[:, None]
        return Solution(x, t, slow + 0.5 * fast)


class Elliptic(Equation):
    """Δu + k² u = q on a square, zero at its edges, with u = sin(aπx) sin(bπy) and the q that this needs."""

    axes = ("x", "y")
    second = (0, 1)
    a: float
    b: float
    k = 0.0

    def exact(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(self.a * math.pi * x) * torch.sin(self.b * math.pi * y)

    def source(self, points: Tensor) -> Tensor:
        factor = self.k**2 - math.pi**2 * (self.a**2 + self.b**2)
        return factor * self.exact(points[:, 0], points[:, 1])

    def residual(self, u: Tensor, first: Tensor, second: dict[int, Tensor], source: Tensor | None) -> Tensor:
        assert source is not None
        return second[0] + second[1] + self.k**2 * u - source

    def conditions(self, count: int) -> list[Condition]:
        edges = [self.edge(axis, end[axis], count // 4) for axis in (0, 1) for end in (self.low, self.high)]
        points = torch.cat(edges)
        return [given(points, torch.zeros(len(points), dtype=torch.float64))]

    def solution(self) -> Solution:
        x, y = self.grid(SQUARE, SQUARE)
        return Solution(x, y, self.exact(x[None, :], y[:, None]))


class Poisson(Elliptic):
    """Δu = q on the unit square, u = sin 2πx sin 2πy."""

    low, high, a, b = (0.0, 0.0), (1.0, 1.0), 2.0, 2.0


class Helmholtz(Elliptic):
    """Δu + u = q on [−1, 1]², u = sin πx sin 4πy."""

    low, high, a, b, k = (-1.0, -1.0), (1.0, 1.0), 1.0, 4.0, 1.0


EQUATIONS: dict[str, type[Equation]] = {
    "burgers": Burgers,
    "convection": Convection,
    "allen-cahn": AllenCahn,
    "poisson": Poisson,
    "helmholtz": Helmholtz,
    "wave": Wave,
}


@lru_cache(maxsize=len(EQUATIONS))
def solution_of(name: str) -> Solution:
    """Computed once in a process: the slowest takes half a second."""
    return EQUATIONS[name]().solution()
