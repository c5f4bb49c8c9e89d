"""The strong Wolfe conditions, by the points that torch's L-BFGS visits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaqn.core.checks import at_least_one, between
from adaqn.core.line_search import Found, Line, Steps, Trial, Trials, run

LONGER = 10.0
"""The most by which a length grows from one trial to the next."""
APART = 0.01
"""The least by which it grows, as a share of the last growth."""
INSIDE = 0.1
"""How far from both ends of a bracket, as a share of it, a trial stands that got stuck at one."""


@dataclass(frozen=True)
class StrongWolfe:
    """φ(t) ≤ φ(0) + c1·t·φ′(0) and |φ′(t)| ≤ −c2·φ′(0), as in ``torch.optim.LBFGS(line_search_fn="strong_wolfe")``.

    The length grows until the two ends of a bracket enclose such a point, then the bracket shrinks (Nocedal and Wright,
    alg. 3.5 and 3.6, with cubic interpolation). On finite functions the lengths are torch's. What torch's search does
    not have: a value that is not finite shortens the step, the lowest point is what a failure returns, and ``noise``
    relaxes every comparison of two values.

    Args:
        c1: the share of the decrease that the slope promises.
        c2: the share of the slope that may be left.
        most: trials after the first one.

    >>> search = StrongWolfe()
    >>> parabola = lambda t: Trial(t, (t - 3.0) ** 2, 2.0 * (t - 3.0))
    >>> found = search(parabola, parabola(0.0), 20.0, budget=10)
    >>> found.trial.t, found.reason, found.evaluations
    (3.0, 'strong Wolfe', 2)
    """

    c1: float = 1e-4
    c2: float = 0.9
    most: int = 25

    def __post_init__(self) -> None:
        between("c1", self.c1, 0.0, 1.0)
        between("c2", self.c2, self.c1, 1.0)
        at_least_one("most", self.most)

    def __call__(
        self, line: Line, start: Trial, first: float, *, budget: int, noise: float = 0.0, resolution: float = 0.0
    ) -> Found:
        trials = Trials(line, start, budget=budget, most=self.most + 1, noise=noise, resolution=resolution)
        return run(self._steps(start, first, noise, resolution), trials, "strong Wolfe")

    def _steps(self, start: Trial, first: float, noise: float, resolution: float) -> Steps:
        """Lengthen until two trials enclose an acceptable one."""
        last, new, count = start, (yield first), 1
        # From the third trial on a value above the last one ends this: torch's rule, one trial later than the book's.
        while self._falls_enough(start, new, noise) and not (count > 2 and new.value >= last.value + noise):
            if self._is_flat(start, new):
                return new
            if new.slope >= 0.0:
                break
            shortest, longest = new.t + APART * (new.t - last.t), LONGER * new.t
            t = lowest_of_cubic(last, new, shortest, longest, noise)
            last, new, count = new, (yield t), count + 1
        return (yield from self._zoom(start, last, new, noise, resolution))

    def _zoom(self, start: Trial, a: Trial, b: Trial, noise: float, resolution: float) -> Steps:
        """Shrink the bracket: ``low`` is its lower end, and φ falls from there into it."""
        low, high = (a, b) if a.value <= b.value else (b, a)
        stuck = False
        while abs(high.t - low.t) >= resolution:
            t, stuck = inside(lowest_of_cubic(low, high, noise=noise), low, high, stuck)
            if t in (low.t, high.t):
                return None  # no number lies between them
            new = yield t
            if not self._falls_enough(start, new, noise) or new.value >= low.value + noise:
                low, high = (low, new) if low.value <= new.value else (new, low)
                continue
            if self._is_flat(start, new):
                return new
            if new.slope * (high.t - low.t) >= 0.0:
                high = low
            low = new
        return None

    def _falls_enough(self, start: Trial, new: Trial, noise: float) -> bool:
        return new.value <= start.value + self.c1 * new.t * start.slope + noise

    def _is_flat(self, start: Trial, new: Trial) -> bool:
        return abs(new.slope) <= -self.c2 * start.slope


def lowest_of_cubic(
    a: Trial, b: Trial, shortest: float | None = None, longest: float | None = None, noise: float = 0.0
) -> float:
    """Where the cubic through both values and slopes is lowest, between the bounds (by default the two points).

    Values that differ by no more than noise say nothing: the slopes alone then decide, by the secant.
    """
    a, b = (a, b) if a.t <= b.t else (b, a)
    shortest, longest = a.t if shortest is None else shortest, b.t if longest is None else longest
    gap, rise = b.t - a.t, b.value - a.value
    if gap <= 0.0:
        return 0.5 * (shortest + longest)
    if abs(rise) <= noise and noise > 0.0:
        rise = 0.5 * (a.slope + b.slope) * gap
    bend = a.slope + b.slope - 3.0 * rise / gap
    square = bend * bend - a.slope * b.slope
    if not (0.0 <= square < math.inf):
        return 0.5 * (shortest + longest)  # no minimum, or out of the range of numbers
    root = math.sqrt(square)
    below = b.slope - a.slope + 2.0 * root
    if below == 0.0:
        return 0.5 * (shortest + longest)  # a straight line
    t = b.t - gap * ((b.slope + root - bend) / below)
    return min(max(t, shortest), longest)


def inside(t: float, a: Trial, b: Trial, stuck: bool) -> tuple[float, bool]:
    """A length that does not creep along an end of the bracket, and whether it is near one.

    Near an end is allowed once. At an end, or near one twice in a row, it moves to a tenth of the bracket from it.
    """
    left, right = min(a.t, b.t), max(a.t, b.t)
    margin = INSIDE * (right - left)
    if min(right - t, t - left) >= margin:
        return t, False
    if not stuck and left < t < right:
        return t, True
    return (right - margin if right - t < t - left else left + margin), False
