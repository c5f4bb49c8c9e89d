"""Means of losses, also of those that are almost infinite."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable


def mean(values: Iterable[float]) -> float:
    """As :func:`statistics.fmean`, also where the sum is more than a float holds: models diverge through such losses.

    >>> mean([1.0, 2.0]), mean([1.5e308, 1.7e308])
    (1.5, 1.6e+308)
    """
    found = list(values)
    try:
        return statistics.fmean(found)
    except OverflowError:
        return math.fsum(value / len(found) for value in found)
