"""Which pairs are fit to store. (Alg. 1, l. 19)"""

from __future__ import annotations

import math
from collections.abc import Callable

CurvatureTest = Callable[[float, float, float, float], bool]
"""(s·s, s·y, y·y, ε) → may the pair be stored?"""


def absolute(ss: float, sy: float, yy: float, eps: float) -> bool:
    """s·y > ε s·s, as the paper prints it. Depends on the scale of the loss (see :func:`scale_free`).

    >>> absolute(ss=1.0, sy=2e-4, yy=1.0, eps=1e-4), absolute(ss=1.0, sy=1e-5, yy=1.0, eps=1e-4)
    (True, False)
    """
    return is_usable(sy, yy) and sy > eps * ss


def scale_free(ss: float, sy: float, yy: float, eps: float) -> bool:
    """s·y > ε‖s‖‖y‖: the angle between s and y decides, whatever the scale of the loss.

    A loss that is a hundred times smaller makes the Fisher product y ten thousand times smaller:
    the absolute test then skips every pair, and this one stores the same ones as before.

    >>> scale_free(ss=1.0, sy=1e-9, yy=1e-16, eps=1e-4)
    True
    """
    return is_usable(sy, yy) and sy > eps * math.sqrt(ss) * math.sqrt(yy)


def is_usable(sy: float, yy: float) -> bool:
    """May 1/s·y and s·y/y·y be formed at all? No test may store a pair otherwise (D14)."""
    return all(math.isfinite(value) and value > 0.0 and math.isfinite(1.0 / value) for value in (sy, yy))


CURVATURE_TESTS: dict[str, CurvatureTest] = {"absolute": absolute, "scale_free": scale_free}
