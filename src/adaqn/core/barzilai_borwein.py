"""Other ways to learn a number times the identity from the pairs: the mean of several, and a bounded one."""

from __future__ import annotations

import math

from adaqn.core.checks import positive_number
from adaqn.core.scaling import BarzilaiBorwein


class MeanBarzilaiBorwein(BarzilaiBorwein):
    """H0 = the mean of s·y / y·y over the newest ``size`` pairs, as in oLBFGS: one noisy pair does not decide."""

    def __init__(self, size: int, initial: float = 1.0) -> None:
        super().__init__(initial)
        self.size = size
        self.ratios: list[float] = []
        self.number_names = ("factor", *(f"ratio_{i}" for i in range(size)))

    def on_stored(self, sy: float, yy: float) -> None:
        self.ratios = [*self.ratios, sy / yy][-self.size :]
        self.factor = sum(self.ratios) / len(self.ratios)

    def reset(self) -> None:
        self.factor, self.ratios = self.initial, []

    def numbers(self, index: int) -> dict[str, float]:
        padded = self.ratios + [0.0] * (self.size - len(self.ratios))  # a ratio is positive: 0 is "none"
        return {"factor": self.factor, **{f"ratio_{i}": ratio for i, ratio in enumerate(padded)}}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.factor = numbers["factor"]
        ratios = (numbers[f"ratio_{i}"] for i in range(self.size))
        self.ratios = [ratio for ratio in ratios if ratio > 0.0]


class BoundedBarzilaiBorwein(BarzilaiBorwein):
    """H0⁻¹ = max(y·y / s·y, δ) I, as in SdLBFGS; set by the pair as it was measured, before it is damped."""

    number_names = ("bounded_factor",)  # another name: the pairs of another method would not fit

    def __init__(self, delta: float, initial: float = 1.0) -> None:
        super().__init__(initial)
        self.delta = positive_number("delta", delta)

    def measure(self, sy: float, yy: float) -> None:
        """See the products of a pair that may have any sign."""
        curvature = yy / sy if sy > 0.0 else 0.0
        self.factor = 1.0 / max(curvature, self.delta) if math.isfinite(curvature) else self.factor

    def on_stored(self, sy: float, yy: float) -> None:
        """The damped pair says nothing new."""

    def numbers(self, index: int) -> dict[str, float]:
        return {"bounded_factor": self.factor}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.factor = numbers["bounded_factor"]
