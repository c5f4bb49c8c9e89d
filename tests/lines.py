"""Random functions of a step length, for the tests of line searches."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from adaqn.core.line_search import Trial


@dataclass
class Counted:
    """A line that keeps the lengths it was asked for. ``scale`` and ``length`` stretch it in both directions."""

    phi: Callable[[float], tuple[float, float]]
    scale: float = 1.0
    length: float = 1.0
    wall: float = math.inf
    beyond: tuple[float, float] = (math.inf, math.nan)
    asked: list[float] = field(default_factory=list)

    def __call__(self, t: float) -> Trial:
        self.asked.append(t)
        return self.at(t)

    def at(self, t: float) -> Trial:
        if t >= self.wall:
            return Trial(t, *self.beyond)
        value, slope = self.phi(t / self.length)
        return Trial(t, self.scale * value, self.scale / self.length * slope)


def parabola(minimum):
    return lambda t: (0.5 * (t - minimum) ** 2, t - minimum)


def falling(seed, kind):
    """A smooth function that falls at 0, is of the order of 1 there and grows without bound in the end."""
    rng = random.Random(seed)
    if kind == "convex":
        a, b, c, m = rng.uniform(0.1, 2), rng.uniform(0, 1), rng.uniform(0, 2), rng.uniform(0.2, 5)
        return lambda t: (
            a * (t - m) ** 2 + b * (t - m) ** 4 + c * math.log1p((t - m) ** 2 / 4),
            2 * a * (t - m) + 4 * b * (t - m) ** 3 + 2 * c * (t - m) / (4 + (t - m) ** 2),
        )
    if kind == "polynomial":
        roots = [rng.uniform(-1, 4) for _ in range(5)]  # the zeros of the slope

        sign = 1.0 if math.prod(roots) > 0.0 else -1.0  # falls at 0

        def slope(t):
            return sign * math.prod(t - root for root in roots) + 1.2 * (sign < 0.0) * t**5  # grows in the end

        def value(t):
            """By Gauss's rule with five nodes, which is exact up to degree nine."""
            return 0.5 * t * sum(w * slope(0.5 * t * (1 + x)) for x, w in GAUSS)

        return lambda t: (value(t), slope(t))
    waves = [(rng.uniform(0.1, 1), rng.uniform(0.5, 6), rng.uniform(0, 6.3)) for _ in range(3)]
    bend, m = rng.uniform(0.05, 1), rng.uniform(0.5, 5)

    def wavy(t):
        value = bend * (t - m) ** 2 + sum(a * math.cos(w * t + p) for a, w, p in waves)
        return value, 2 * bend * (t - m) - sum(a * w * math.sin(w * t + p) for a, w, p in waves)

    return wavy if wavy(0.0)[1] < 0.0 else lambda t: (wavy(-t)[0], -wavy(-t)[1])


X = [math.sqrt(5 + sign * 2 * math.sqrt(10 / 7)) / 3 for sign in (-1, 1)]
W = [(322 - sign * 13 * math.sqrt(70)) / 900 for sign in (-1, 1)]
GAUSS = [(0.0, 128 / 225), *((side * x, w) for x, w in zip(X, W, strict=True) for side in (-1, 1))]
