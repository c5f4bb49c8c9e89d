"""A verdict in two looks: when do the losses of a part of the examples settle what all of them would say? (D35)

With Z the mean of all n paired differences in its standard errors, and Z₁ that of a part of n₁, both are close to
normal, with correlation ρ = √(n₁/n), and given Z the other is N(ρZ, 1 − ρ²), whatever the cycle did. A cycle is kept
on the first look if Z₁ ≤ c; only all examples can reject one, by Z > level. What the first look hides of a cycle that
is worse by δ standard errors is

    missed(δ) = P(Z > level, Z₁ ≤ c) = ∫ φ(level + u − δ) Φ((c − ρ(level + u))/√(1 − ρ²)) du  over u > 0,

which depends on δ − level and on c − ρ·level alone. c is the largest with missed(δ) ≤ 0.02 for all δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul

EVERY = 20
"""Cycles after which all examples are looked at anyway: what the first ones never show must not go on for ever."""
MISSED = 0.02
"""By how much less surely than with all examples a worse cycle may be found."""
_SPACING = 0.02
_ABOVE = [_SPACING * k for k in range(401)]
"""Z − level where all examples reject, up to 8."""
_WORSE = [0.05 * k for k in range(61)]
"""δ − level: what is hidden grows with P(Z > level) while that is well below 1, and falls from there on."""


def is_by_all(cycle: int) -> bool:
    """Is that cycle, counted from 1, judged by all examples whatever the first look says?"""
    return cycle % EVERY == 0


def most_lenient(share: float, level: float) -> float:
    """c: a first look at that share of the examples settles a verdict if its mean is at most c standard errors.

    >>> round(most_lenient(0.25, level=3.0), 2), round(most_lenient(0.5, level=3.0), 2)
    (0.25, 1.26)
    """
    below = margin(share)
    return math.sqrt(share) * level - below


@lru_cache
def margin(share: float) -> float:
    """ρ·level − c, by bisection, rounded up: machines that round differently must have the same.

    Plain numbers, of which no one has to wait for a device.
    """
    low, high = 0.0, 4.0
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if max(missed(share, middle, _WORSE)) > MISSED else (low, middle)
    return math.ceil(high * 1e3) / 1e3


def missed(share: float, below: float, worse: Sequence[float]) -> list[float]:
    """P(Z > level, Z₁ ≤ ρ·level − ``below``) for cycles that are worse by δ = level + ``worse`` standard errors."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"a first look is at a part of the examples, above 0 and below 1, got {share}")
    rho, deviation = math.sqrt(share), math.sqrt(1.0 - share)
    hidden = [0.5 * math.erfc((below + rho * u) / (deviation * math.sqrt(2.0))) for u in _ABOVE]
    return [_integral(density, hidden) for density in map(_density, worse)]


@lru_cache(maxsize=len(_WORSE))
def _density(worse: float) -> list[float]:
    """φ(level + u − δ) over u > 0."""
    return [math.exp(-0.5 * (u - worse) ** 2) / math.sqrt(2.0 * math.pi) for u in _ABOVE]


def _integral(density: Sequence[float], hidden: Sequence[float]) -> float:
    """Of their product, by trapezoids."""
    ends = density[0] * hidden[0] + density[-1] * hidden[-1]
    return _SPACING * (math.fsum(map(mul, density, hidden)) - 0.5 * ends)
