"""How long may a step be? Longer than asked for while the monitored loss falls in nearly every cycle (D37).

Steps that are much too short lower the loss in every cycle. Steps that are as long as they may be lower it in little
more than half of them: their noise is then as large as their progress. The logarithm of the multiplier rises by
``RATE·(1 − SHARE)`` with every cycle that lowered the loss, and falls by ``RATE·SHARE`` with every other. So it stands
still where ``SHARE`` of the cycles lower the loss.
"""

from __future__ import annotations

import math

from adaqn.core.acceptance import STEP_RECOVERY

SHARE = 0.8
"""Of the cycles lower the monitored loss where steps keep their length."""
RATE = 0.2
"""How fast steps change: from 1 to 8 in 52 cycles, if all of them lower the loss."""
LONGER = math.exp(RATE * (1.0 - SHARE))
SHORTER = math.exp(-RATE * SHARE)


def after_accepted(multiplier: float, fell: bool | None, largest: float) -> float:
    """The multiplier of the step size after a cycle that was kept.

    Below 1, where rejections have brought it, it recovers (D11). From there on it follows the monitored loss, between 1
    and ``largest``; ``fell`` is ``None`` where nothing was compared.

    >>> after_accepted(0.5, True, largest=8.0), after_accepted(1.0, True, largest=1.0)
    (0.51, 1.0)
    >>> [round(after_accepted(2.0, fell, largest=8.0), 3) for fell in (True, False, None)]
    [2.082, 1.704, 2.0]
    """
    if multiplier < 1.0:
        return min(1.0, multiplier * STEP_RECOVERY)
    followed = after_rejected(multiplier) if fell is False else multiplier * LONGER if fell else multiplier
    return min(largest, followed)


def after_rejected(multiplier: float) -> float:
    """The same after a cycle that did not lower the loss: what was gained is given back, and no more than that."""
    return max(1.0, multiplier * SHORTER) if multiplier > 1.0 else multiplier
