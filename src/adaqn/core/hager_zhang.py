"""Hager and Zhang's search: the Wolfe conditions, or approximate ones where values are near rounding."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from adaqn.core.checks import at_least_one, at_least_zero, between
from adaqn.core.line_search import Found, Line, Steps, Trial, Trials, run

Bracket = tuple[Trial, Trial]
Brackets = Generator[float, Trial, Bracket]


@dataclass(frozen=True)
class HagerZhang:
    """The search of CG_DESCENT (Hager and Zhang 2005; Algorithm 851, 2006).

    Accepts Wolfe's conditions (T1), or, where values can no longer tell, approximate ones by slopes alone (T2)::

        T1:  φ(t) ≤ φ(0) + δ·t·φ′(0)  and  φ′(t) ≥ σφ′(0)
        T2:  (2δ − 1)φ′(0) ≥ φ′(t) ≥ σφ′(0)  and  φ(t) ≤ φ(0) + ε_k,  ε_k = max(ε|φ(0)|, noise)

    T2 is Armijo's condition for a parabola, written in slopes: a difference of two losses that agree in all but their
    last digits has none that are right, and their slopes still have most of them. A step may raise the loss by ε_k.

    Args:
        delta: δ, below 1/2.
        sigma: σ, at least δ.
        epsilon: ε.
        theta: θ, where an interval is cut that has no opposite slopes.
        gamma: γ, the share to which a round must shrink the bracket, or it is halved.
        rho: ρ, by which the length grows until the slope turns.
        most: trials.

    >>> search = HagerZhang()
    >>> parabola = lambda t: Trial(t, (t - 3.0) ** 2, 2.0 * (t - 3.0))
    >>> found = search(parabola, parabola(0.0), 20.0, budget=10)
    >>> found.trial.t, found.reason, found.evaluations
    (3.0, 'Wolfe', 2)
    """

    delta: float = 0.1
    sigma: float = 0.9
    epsilon: float = 1e-6
    theta: float = 0.5
    gamma: float = 0.66
    rho: float = 5.0
    most: int = 30

    def __post_init__(self) -> None:
        between("delta", self.delta, 0.0, 0.5)
        between("sigma", self.sigma, self.delta, 1.0)
        at_least_zero("epsilon", self.epsilon)
        between("theta", self.theta, 0.0, 1.0)
        between("gamma", self.gamma, 0.0, 1.0)
        between("rho", self.rho, 1.0, float("inf"))
        at_least_one("most", self.most)

    def __call__(
        self, line: Line, start: Trial, first: float, *, budget: int, noise: float = 0.0, resolution: float = 0.0
    ) -> Found:
        trials = Trials(line, start, budget=budget, most=self.most, noise=noise, resolution=resolution)
        ceiling = start.value + max(self.epsilon * abs(start.value), noise)

        def accepts(trial: Trial) -> str:
            if trial.slope < self.sigma * start.slope:
                return ""
            if trial.value - start.value <= self.delta * trial.t * start.slope:
                return "Wolfe"
            flat = trial.slope <= (2.0 * self.delta - 1.0) * start.slope
            return "approximate Wolfe" if flat and trial.value <= ceiling else ""

        return run(self._steps(start, first, ceiling, resolution), trials, accepts=accepts)

    def _steps(self, start: Trial, first: float, ceiling: float, resolution: float) -> Steps:
        """The loop L0 to L3. In a bracket φ(a) ≤ ceiling, φ′(a) < 0 and φ′(b) ≥ 0."""
        a, b = yield from self._bracket(start, first, ceiling, resolution)  # L0
        while b.t - a.t > resolution:
            old = a, b
            a, b = yield from self._secant_squared(a, b, ceiling, resolution)  # L1
            if b.t - a.t > self.gamma * (old[1].t - old[0].t):  # L2
                a, b = yield from self._updated(a, b, 0.5 * (a.t + b.t), ceiling, resolution)
            if (a, b) == old:
                return None  # no number lies between them
        return None

    def _bracket(self, start: Trial, first: float, ceiling: float, resolution: float) -> Brackets:
        last, new = start, (yield first)  # B0
        while new.slope < 0.0:
            if new.value > ceiling:  # B2
                return (yield from self._cut(start, new, ceiling, resolution))
            last, new = new, (yield self.rho * new.t)  # B3
        return last, new  # B1

    def _secant_squared(self, a: Trial, b: Trial, ceiling: float, resolution: float) -> Brackets:
        """Two secant steps, the second from the end that the first one replaced."""
        c = secant(a, b)
        A, B = yield from self._updated(a, b, c, ceiling, resolution)  # S1
        if c == B.t:  # S2
            return (yield from self._updated(A, B, secant(b, B), ceiling, resolution))
        if c == A.t:  # S3
            return (yield from self._updated(A, B, secant(a, A), ceiling, resolution))
        return A, B  # S4

    def _updated(self, a: Trial, b: Trial, c: float, ceiling: float, resolution: float) -> Brackets:
        """The smaller bracket that a trial at c leaves."""
        if not a.t < c < b.t:  # U0
            return a, b
        new = yield c
        if new.slope >= 0.0:  # U1
            return a, new
        if new.value <= ceiling:  # U2
            return new, b
        return (yield from self._cut(a, new, ceiling, resolution))  # U3

    def _cut(self, a: Trial, b: Trial, ceiling: float, resolution: float) -> Brackets:
        """U3: a is low, b high and yet falling, so φ turns between them. Cut until it does at the upper end."""
        while b.slope < 0.0 and b.t - a.t > resolution:
            t = (1.0 - self.theta) * a.t + self.theta * b.t
            if not a.t < t < b.t:
                break
            new = yield t
            if new.slope >= 0.0 or new.value > ceiling:
                b = new
            else:
                a = new
        return a, b


def secant(a: Trial, b: Trial) -> float:
    """Where the line through both slopes is zero; not a number where they are equal."""
    rise = b.slope - a.slope
    return (a.t * b.slope - b.t * a.slope) / rise if rise != 0.0 else float("nan")
