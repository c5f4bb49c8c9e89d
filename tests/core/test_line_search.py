"""Each search against its own conditions, on random lines; what is not finite, what is noise, and what a budget is."""

import math
import random
import weakref
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lbfgs import _strong_wolfe

from adaqn.core.backtracking import Backtracking
from adaqn.core.hager_zhang import HagerZhang
from adaqn.core.line_search import Trial
from adaqn.core.line_search_names import LINE_SEARCHES
from adaqn.core.strong_wolfe import StrongWolfe

EVERY = pytest.mark.parametrize("name", sorted(LINE_SEARCHES))
SLOPES = pytest.mark.parametrize("name", ["hager_zhang", "strong_wolfe"])


@dataclass
class Counted:
    """A line that keeps the lengths it was asked for. ``scale`` and ``length`` stretch it in both directions."""

    phi: object
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

        def slope(t):
            return sign * math.prod(t - root for root in roots)

        sign = 1.0
        sign = -1.0 if slope(0.0) > 0.0 else 1.0
        grows = sign > 0.0
        # φ by Gauss's rule with five nodes, exact up to degree nine
        nodes = ((0.0, 128 / 225), *((s * x, w) for x, w in GAUSS for s in (-1, 1)))

        def value(t):
            return 0.5 * t * sum(w * slope(0.5 * t * (1 + x)) for x, w in nodes)

        if grows:
            return lambda t: (value(t), slope(t))
        return lambda t: (value(t) + 0.2 * t**6, slope(t) + 1.2 * t**5)
    waves = [(rng.uniform(0.1, 1), rng.uniform(0.5, 6), rng.uniform(0, 6.3)) for _ in range(3)]
    bend, m = rng.uniform(0.05, 1), rng.uniform(0.5, 5)

    def wavy(t):
        value = bend * (t - m) ** 2 + sum(a * math.cos(w * t + p) for a, w, p in waves)
        return value, 2 * bend * (t - m) - sum(a * w * math.sin(w * t + p) for a, w, p in waves)

    return wavy if wavy(0.0)[1] < 0.0 else lambda t: (wavy(-t)[0], -wavy(-t)[1])


GAUSS = (
    (math.sqrt(5 - 2 * math.sqrt(10 / 7)) / 3, (322 + 13 * math.sqrt(70)) / 900),
    (math.sqrt(5 + 2 * math.sqrt(10 / 7)) / 3, (322 - 13 * math.sqrt(70)) / 900),
)
KINDS = st.sampled_from(["convex", "polynomial", "wavy"])
SEEDS = st.integers(0, 10**6)
DECADES = st.integers(-8, 8)


def holds(search, start, trial, noise=0.0):
    """The conditions of each search, written down once more; a hair is left for rounding."""
    hair = 1e-12 * (abs(start.value) + abs(trial.value))
    promised = trial.t * start.slope
    if isinstance(search, StrongWolfe):
        return (
            trial.value <= start.value + search.c1 * promised + noise + hair
            and abs(trial.slope) <= -search.c2 * start.slope * (1 + 1e-12)
        )
    if isinstance(search, Backtracking):
        return trial.value <= start.value + search.c1 * promised + noise + hair
    steep = trial.slope >= search.sigma * start.slope * (1 + 1e-12)
    wolfe = trial.value <= start.value + search.delta * promised + hair
    flat = trial.slope <= (2 * search.delta - 1) * start.slope * (1 + 1e-12)
    near = trial.value <= start.value + max(search.epsilon * abs(start.value), noise) + hair
    return steep and (wolfe or (flat and near))


@EVERY
@given(KINDS, SEEDS, DECADES, DECADES, st.floats(-5, 5))
def test_what_is_found_meets_the_conditions(name, kind, seed, scale, length, first):
    """At any scale of the loss and of the step, and from first lengths that are far too short or too long."""
    search = LINE_SEARCHES[name]
    line = Counted(falling(seed, kind), 10.0**scale, 10.0**length)
    start = line.at(0.0)
    found = search(line, start, 10.0 ** (length + first), budget=200)
    assert found.evaluations == len(line.asked)
    assert found.trial.t in (0.0, *line.asked)
    assert (found.trial.value, found.trial.slope) == (line.at(found.trial.t).value, line.at(found.trial.t).slope)
    if found.success:
        assert found.trial.t > 0.0
        assert holds(search, start, found.trial)
    else:
        assert found.trial.value <= start.value
    assert found.success, found
