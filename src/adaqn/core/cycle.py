"""How long the next cycle should be (the paper's second open question).

A pair is worth its cost if s is a displacement and not noise. Two neighbouring pairs tell: a drift goes on in the
same direction, cos(s, s₋) = 1; averages of a random walk have a cosine c₀ (1/4 for long cycles, by their overlap
alone, and more with momentum, whose steps resemble each other); around a minimum averages come and go, −1/2.
If a share q of ‖s‖² is drift and the rest a random walk, cos = q + (1 − q) c₀, and so

    q = (cos − c₀) / (1 − c₀)

needs no scale, no extra gradient, and one inner product per cycle. Drift grows with L and a random walk with √L, so q
rises with L: too little signal asks for a longer cycle, and where s is nearly all signal a shorter one gives
fresher pairs of the same worth.
"""

from __future__ import annotations

import math
from functools import lru_cache

from adaqn.core.outcome import Outcome

START = 5
"""The first length of an adaptive cycle, the paper's fixed one."""
TOO_NOISY, CLEAR = 1.0 / 3.0, 2.0 / 3.0
"""Shares of signal in s below which cycles grow, and above which they shrink: a third and two thirds."""


@lru_cache(maxsize=256)
def noise_cosine(length: int, momentum: float = 0.0) -> float:
    """c₀: the cosine of neighbouring differences of averages over ``length`` points of a random walk.

    The steps of the walk have correlation momentumᵏ at a distance of k. The difference of two neighbouring averages
    weighs them by a triangle, 1, 2, …, L, …, 2, 1; the next difference lies L steps further on.

    >>> noise_cosine(1), round(noise_cosine(2), 3), round(noise_cosine(100), 3)
    (0.0, 0.167, 0.25)
    >>> round(noise_cosine(5, momentum=0.9), 2)
    0.76
    """
    triangle = [*range(1, length + 1), *range(length - 1, 0, -1)]

    def correlation(shift: int) -> float:
        return math.fsum(
            a * b * momentum ** abs(j + shift - i) for i, a in enumerate(triangle) for j, b in enumerate(triangle)
        )

    return correlation(length) / correlation(0)


def signal_share(cosine: float, length: int, momentum: float = 0.0) -> float:
    """q: which share of ‖s‖² is drift; negative where averages come and go.

    >>> signal_share(1.0, 5), signal_share(noise_cosine(5), 5)
    (1.0, 0.0)
    """
    expected = noise_cosine(length, momentum)
    return (cosine - expected) / (1.0 - expected)


def next_cycle_length(length: int, outcome: Outcome, share: float | None, shortest: int, longest: int) -> int:
    """Longer where pairs are noise, shorter where they are clear or where a rejection throws the whole cycle away.

    One step at a time, for ``share`` is itself noisy. A rejection takes a quarter: it loses L steps, and is known only
    at their end. A skipped pair had too little curvature for its length, and a longer average is a cleaner one.

    Args:
        length: of the cycle that has ended.
        outcome: how it ended.
        share: :func:`signal_share` of the newest pair, ``None`` where there is no neighbour to compare with.
        shortest: the bound on cost, which is paid per cycle.
        longest: the bound on what a rejection may lose.

    >>> next_cycle_length(5, Outcome.STORED, 0.1, 2, 20), next_cycle_length(5, Outcome.STORED, 0.9, 2, 20)
    (6, 4)
    >>> next_cycle_length(20, Outcome.REJECTED, None, 2, 20), next_cycle_length(20, Outcome.SKIPPED, None, 2, 20)
    (15, 20)
    """
    if outcome is Outcome.REJECTED:
        length -= max(1, length // 4)
    elif outcome is Outcome.SKIPPED or (share is not None and share < TOO_NOISY):
        length += 1
    elif share is not None and share > CLEAR:
        length -= 1
    return min(max(length, shortest), longest)


def cosine(square: float, across: float, other_square: float) -> float | None:
    """Of the angle between two vectors with these products; ``None`` where their squares underflow or overflow.

    >>> cosine(4.0, 1.0, 1.0), cosine(0.0, 0.0, 1.0)
    (0.5, None)
    """
    length = math.sqrt(square) * math.sqrt(other_square)
    return across / length if math.isfinite(length) and length > 0.0 else None
