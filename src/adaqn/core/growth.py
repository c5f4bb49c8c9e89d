"""How long may a step be? Longer than asked for while the monitored loss falls in nearly every cycle (D37).

Steps that are much too short lower the loss in every cycle. Steps that are as long as they may be lower it in little
more than half of them: their noise is then as large as their progress. The logarithm of the multiplier rises by
``rate·(1 − SHARE)`` with every cycle that lowered the loss, and falls by ``rate·SHARE`` with every other. So it stands
still where ``SHARE`` of the cycles lower the loss. The first cycles have a higher rate: most of them lower the loss by
far more than its noise, and a run should not wait long for the length that suits it.
"""

from __future__ import annotations

import math

from adaqn.core.acceptance import STEP_RECOVERY

SHARE = 0.8
"""Of the cycles lower the monitored loss where steps keep their length."""
EARLY = 20
"""Cycles with the higher rate."""
EARLY_RATE = 0.35
"""Steps become four times as long in these cycles, if all of them lower the loss."""
RATE = 0.2
"""Afterwards, twice as long in 17 cycles."""


def after_accepted(multiplier: float, fell: bool | None, largest: float, cycle: int) -> float:
    """The multiplier of the step size after that cycle, counted from 1, which was kept.

    Below 1, where rejections have brought it, it recovers (D11). From there on it follows the monitored loss, between 1
    and ``largest``; ``fell`` is ``None`` where nothing was compared.

    >>> after_accepted(0.5, True, largest=8.0, cycle=1), after_accepted(1.0, True, largest=1.0, cycle=1)
    (0.51, 1.0)
    >>> [round(after_accepted(2.0, fell, largest=8.0, cycle=50), 3) for fell in (True, False, None)]
    [2.082, 1.704, 2.0]
    """
    if multiplier < 1.0:
        return min(1.0, multiplier * STEP_RECOVERY)
    followed = (
        after_rejected(multiplier, cycle) if fell is False else multiplier * longer(cycle) if fell else multiplier
    )
    return min(largest, followed)


def after_rejected(multiplier: float, cycle: int) -> float:
    """The same after a cycle that did not lower the loss: what was gained is given back, and no more than that."""
    return max(1.0, multiplier * shorter(cycle)) if multiplier > 1.0 else multiplier


def longer(cycle: int) -> float:
    """By which factor steps grow with a cycle that lowered the loss."""
    return math.exp(_rate(cycle) * (1.0 - SHARE))


def shorter(cycle: int) -> float:
    """By which factor they shrink with one that did not."""
    return math.exp(-_rate(cycle) * SHARE)


def _rate(cycle: int) -> float:
    return EARLY_RATE if cycle <= EARLY else RATE
