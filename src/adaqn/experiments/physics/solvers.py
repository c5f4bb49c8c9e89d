"""Solutions to compare with, in float64: Cole and Hopf's integral, and a Fourier method with exponential steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NODES = 120
"""Of the Gauss-Hermite rule: three times as many change nothing but the last digits (tested)."""
CONTOUR = 32
"""Points of the circle on which the coefficients of a step are averaged."""


def burgers(x: Array, t: Array, viscosity: float, nodes: int = NODES) -> Array:
    """u_t + u u_x = ν u_xx on [−1, 1] with u(x, 0) = −sin πx, at every x (columns) and t (rows).

    Cole and Hopf's transformation makes it the heat equation, whose solution is an integral with the weight
    exp(−z²), where the argument of the start is x − z √(4νt).

    >>> bool(abs(burgers(np.array([0.5]), np.array([0.0]), 0.01)[0, 0] + 1) < 1e-12)
    True
    """
    z, weights = np.polynomial.hermite.hermgauss(nodes)
    y = np.pi * (x[None, :, None] - z * np.sqrt(4.0 * viscosity * t)[:, None, None])
    potential = weights * np.exp(-(1.0 + np.cos(y)) / (2.0 * np.pi * viscosity))  # 1 + keeps it from overflowing
    solution: Array = -(potential * np.sin(y)).sum(-1) / potential.sum(-1)
    return solution


def periodic(
    start: Array, length: float, linear: Callable[[Array], Array],
    nonlinear: Callable[[Array, Array], Array], times: Array, steps: int,
) -> Array:  # fmt: skip
    """u_t = L u + N(u) on a period of that length, at the given times (rows).

    Fourier in space and the fourth-order exponential Runge-Kutta method of Cox and Matthews in time, with
    coefficients averaged over a circle, as Kassam and Trefethen do, where their formulas would cancel.

    Args:
        start: u at equally spaced points, the first at the left end of the period, the right end left out.
        length: of the period.
        linear: wavenumbers k → L of exp(ikx), which must be real.
        nonlinear: (u, ik) → N(u) at the same points.
        times: from 0 on, increasing.
        steps: between two of them.
    """
    k = 2.0 * np.pi / length * np.fft.rfftfreq(len(start), 1.0 / len(start))
    L, ik = np.asarray(linear(k)), 1j * k
    solution, v = [start], np.fft.rfft(start)

    def N(v: Array) -> Array:
        return np.fft.rfft(nonlinear(np.fft.irfft(v, len(start)), ik))

    for before, after in pairwise(times):
        v = _etdrk4(v, L, N, (after - before) / steps, steps)
        solution.append(np.fft.irfft(v, len(start)))
    return np.stack(solution)


def _etdrk4(v: Array, L: Array, N: Callable[[Array], Array], h: float, steps: int) -> Array:
    circle = np.exp(2j * np.pi * (np.arange(CONTOUR) + 0.5) / CONTOUR)
    z = h * L[:, None] + circle
    e = np.exp(z)

    def averaged(values: Array) -> Array:
        mean: Array = values.mean(1)
        return mean.real  # L is real, and so are they

    half = h * averaged((np.exp(z / 2.0) - 1.0) / z)
    first = h * averaged((-4.0 - z + e * (4.0 - 3.0 * z + z**2)) / z**3)
    middle = h * averaged((2.0 + z + e * (z - 2.0)) / z**3)
    last = h * averaged((-4.0 - 3.0 * z - z**2 + e * (4.0 - z)) / z**3)
    E, E2 = np.exp(h * L), np.exp(h * L / 2.0)
    for _ in range(steps):
        n = N(v)
        a = E2 * v + half * n
        n_a = N(a)
        b = E2 * v + half * n_a
        n_b = N(b)
        c = E2 * a + half * (2.0 * n_b - n)
        v = E * v + first * n + 2.0 * middle * (n_a + n_b) + last * N(c)
    return v


def allen_cahn(points: int, times: Array, steps: int, diffusion: float = 1e-4, reaction: float = 5.0) -> Array:
    """u_t = D u_xx + r (u − u³) on the period [−1, 1] with u(x, 0) = x² cos πx; rows are times."""
    x = -1.0 + 2.0 * np.arange(points) / points
    return periodic(
        x**2 * np.cos(np.pi * x),
        2.0,
        lambda k: -diffusion * k**2 + reaction,
        lambda u, _: -reaction * u**3,
        times,
        steps,
    )
