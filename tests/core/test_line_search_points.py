"""The lengths that a search tries: strong Wolfe as in torch, Hager and Zhang's as printed."""

import math
import random

import pytest
import torch
from torch.optim.lbfgs import _strong_wolfe

from adaqn.core.hager_zhang import HagerZhang
from adaqn.core.strong_wolfe import StrongWolfe
from lines import Counted, falling


class Number(float):
    """A number that torch's search takes for a tensor, computed as plain floats are: tensors divide by reciprocals, and
    what a last digit decides would differ."""

    def sqrt(self):
        return Number(math.sqrt(self))

    def __pow__(self, power):
        return Number(float(self) * float(self)) if power == 2 else NotImplemented

    def dot(self, d):
        return Number(float(self) * float(d))

    def clone(self, memory_format=None):
        return self


for operation in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"):
    plain = getattr(float, f"__{operation}__")
    setattr(Number, f"__{operation}__", lambda a, b, plain=plain: Number(plain(float(a), float(b))))


def by_torch(line, first, resolution, c2=0.9):
    """The lengths that torch's search asks for, and where it ends."""
    asked = []

    def evaluated(x, t, d):
        asked.append(float(t))
        trial = line.at(float(t))
        return trial.value, Number(trial.slope)

    start, direction = line.at(0.0), torch.ones(1, dtype=torch.float64)
    slope = Number(start.slope)
    fixed = (evaluated, 0.0, first, direction, start.value, slope, slope)
    _, _, t, _ = _strong_wolfe(*fixed, c2=c2, tolerance_change=resolution)
    return asked, float(t)


@pytest.mark.parametrize("kind", ["convex", "polynomial", "wavy"])
def test_strong_wolfe_visits_the_points_of_torch(kind):
    most, ended = 0, set()
    for seed in range(400):
        rng = random.Random(seed)
        scale, length, first = rng.randint(-8, 8), rng.randint(-8, 8), rng.uniform(-5, 5)
        resolution = rng.choice([0.0, 1e-9, 0.1]) * 10.0**length
        line = Counted(falling(seed, kind), 10.0**scale, 10.0**length)
        first = 10.0 ** (length + first)
        found = StrongWolfe()(line, line.at(0.0), first, budget=100, resolution=resolution)
        asked, t = by_torch(line, first, resolution)
        assert line.asked == pytest.approx(asked, rel=1e-9)
        if found.success:
            assert found.trial.t == pytest.approx(t, rel=1e-9)
        else:  # torch may go back to the start from the last trial, past lower ones
            assert found.trial.value <= line.at(t).value
        most, ended = max(most, found.evaluations), ended | {found.success}
    assert most > 5
    assert kind == "convex" or ended == {True, False}  # both ends were compared


def scattered(seed):
    """No function at all: values and slopes by chance, most of them low and falling, so that every rule is used."""

    def phi(t):
        rng = random.Random(f"{seed} {t:.12e}")
        return (-rng.random() if t > 0.0 else 0.0), (rng.uniform(-3.0, 1.0) if t > 0.0 else -1.0)

    return phi


def test_strong_wolfe_visits_the_points_of_torch_even_where_there_is_no_function():
    counts = []
    for seed in range(400):
        line = Counted(scattered(seed))
        found = StrongWolfe(c2=0.05)(line, line.at(0.0), 1.0, budget=100, resolution=1e-9)
        asked, t = by_torch(line, 1.0, 1e-9, c2=0.05)
        assert line.asked == pytest.approx(asked, rel=1e-9)
        if found.success:
            assert found.trial.t == pytest.approx(t, rel=1e-9)
        counts.append(found.evaluations)
    assert max(counts) > 10


def printed_hager_zhang(phi, c, *, delta, sigma, eps, theta, gamma, rho):
    """The lengths of Algorithm 851, line by line as it is printed, until one is acceptable."""
    asked = []
    f0, g0 = phi(0.0)
    ceiling = f0 + eps * abs(f0)
    seen = {0.0: (f0, g0)}

    class AcceptableError(Exception):
        pass

    def f(t):
        if t not in seen:
            seen[t] = phi(t)
            asked.append(t)
            value, slope = seen[t]
            T1 = value - f0 <= delta * t * g0 and slope >= sigma * g0
            T2 = (2 * delta - 1) * g0 >= slope >= sigma * g0 and value <= ceiling
            if T1 or T2:
                raise AcceptableError
        return seen[t][0]

    def g(t):
        f(t)
        return seen[t][1]

    def U3(a, b):
        d = (1 - theta) * a + theta * b
        if g(d) >= 0:
            return a, d
        return U3(d, b) if f(d) <= ceiling else U3(a, d)

    def update(a, b, c):
        if not a < c < b:
            return a, b
        if g(c) >= 0:
            return a, c
        return (c, b) if f(c) <= ceiling else U3(a, c)

    def secant(a, b):
        return (a * g(b) - b * g(a)) / (g(b) - g(a)) if g(a) != g(b) else math.nan

    def secant2(a, b):
        c = secant(a, b)
        A, B = update(a, b, c)
        if c == B:
            return update(A, B, secant(b, B))
        if c == A:
            return update(A, B, secant(a, A))
        return A, B

    def bracket(c):
        earlier = [0.0]
        while True:
            if g(c) >= 0:
                return max(e for e in earlier if f(e) <= ceiling), c
            if f(c) > ceiling:
                return U3(0.0, c)
            earlier.append(c)
            c = rho * c

    try:
        a, b = bracket(c)
        while True:
            a1, b1 = secant2(a, b)
            if b1 - a1 > gamma * (b - a):
                a1, b1 = update(a1, b1, (a1 + b1) / 2)
            a, b = a1, b1
    except AcceptableError:
        return asked


@pytest.mark.parametrize("kind", ["convex", "polynomial", "wavy"])
def test_hager_and_zhang_visit_the_points_of_the_printed_algorithm(kind):
    most = 0
    for seed in range(300):
        rng = random.Random(seed)
        first = 10.0 ** rng.uniform(-3, 3)
        constants = {"theta": 0.4, "gamma": 0.6, "rho": 3.0} if seed % 2 else {"theta": 0.5, "gamma": 0.66, "rho": 5.0}
        delta, sigma = rng.choice([(0.1, 0.9), (0.01, 0.02)])
        line = Counted(falling(seed, kind))
        HagerZhang(delta=delta, sigma=sigma, **constants)(line, line.at(0.0), first, budget=100)
        asked = printed_hager_zhang(line.phi, first, delta=delta, sigma=sigma, eps=1e-6, **constants)
        assert line.asked == pytest.approx(asked[: len(line.asked)], rel=1e-9)
        assert len(line.asked) == min(len(asked), HagerZhang().most)
        most = max(most, len(asked))
    assert most > 8
