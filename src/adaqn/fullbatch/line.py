"""The line w + t·d: loss and slope at a point of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaqn.core.line_search import Trial
from adaqn.fullbatch.closure import Evaluations, Sample, same_values
from adaqn.parameters.memory import Memory


class ResampledError(Exception):
    """The closure took another sample in the middle of a search: its losses do not compare."""


class Objective:
    """The function to be made small, of the weights as they are.

    It knows the parameters as one vector and the closure of this step; what it reads is the same in all processes.
    """

    def __init__(self, memory: Memory, evaluations: Evaluations, sample: Sample, *, maximize: bool) -> None:
        self.memory, self.evaluations, self.sample, self.maximize = memory, evaluations, sample, maximize
        self.nonfinite = 0
        self.present: list[int] = []
        """Which parameters had a gradient."""
        self.last = torch.empty(0)
        """The gradient as it was read last."""
        evaluations.is_unchanged = self._is_unchanged

    def here(self) -> tuple[float, Tensor]:
        """Loss and gradient at the weights as they are: one evaluation."""
        return self.behind(self.evaluations(self.memory.flat))

    def behind(self, loss: float) -> tuple[float, Tensor]:
        """The same where the closure has been called, and returned this."""
        if self.evaluations.apart:
            self.memory.adopt_first()
        return -loss if self.maximize else loss, self.gradient()

    def gradient(self) -> Tensor:
        """A new vector with what lies in ``.grad``."""
        flat = self.memory.flat
        g = flat.new()
        self.present = flat.gather_gradients(flat.views(g))
        self.last = g.neg_() if self.maximize else g
        return self.last

    def _is_unchanged(self) -> bool:
        last = self.last
        return same_values(last, self.gradient())

    def products(self, *pairs: tuple[Tensor, Tensor]) -> list[float]:
        """Inner products, the same in all processes; one read from the device. Those that overflow are summed in
        float64: a gradient of 1e20 is finite, and its square is not in float32.
        """
        settle = self.memory.flat.settle
        values: list[float] = settle(torch.stack([a.dot(b) for a, b in pairs]).double()).tolist()
        if not all(map(math.isfinite, values)):
            values = settle(torch.stack([a.double().dot(b.double()) for a, b in pairs])).tolist()
        return values

    def largest(self, *vectors: Tensor) -> list[float]:
        """The largest absolute value of each vector, over all processes; nan where there is one."""
        found = [float(torch.linalg.vector_norm(v, math.inf)) if v.numel() else 0.0 for v in vectors]
        rows = self.memory.flat.processes.table(*found)
        return [_highest(column) for column in zip(*rows, strict=True)]


class Line:
    """From a point along a direction. Calling it moves the weights there and evaluates."""

    def __init__(self, objective: Objective, origin: Tensor, direction: Tensor) -> None:
        self.objective, self.origin, self.direction = objective, origin, direction
        self.point = torch.empty_like(origin)
        self.at: float = 0.0
        self.shortest = math.inf
        """Of the lengths tried."""
        self.last: Trial | None = None
        """The newest trial that was finite."""
        self.sample = objective.sample.number

    def __call__(self, t: float) -> Trial:
        self.move(t)
        self.shortest = min(self.shortest, t)
        value, gradient = self.objective.here()
        if self.objective.sample.number != self.sample:
            raise ResampledError
        (slope,) = self.objective.products((gradient, self.direction))
        trial = Trial(t, value, slope, gradient)
        if not trial.finite:
            self.objective.nonfinite += 1
            return Trial(t, math.inf, math.nan)  # its gradient is of no use to anybody
        self.last = trial
        return trial

    def move(self, t: float) -> None:
        """The weights ← origin + t·d."""
        memory = self.objective.memory
        if t == 0.0:
            self.point.copy_(self.origin)
        else:
            # A length beyond the dtype is infinite in it, and so is the point; torch would not convert it.
            held = math.copysign(math.inf, t) if abs(t) > torch.finfo(self.origin.dtype).max else t
            torch.add(self.origin, self.direction, alpha=held, out=self.point)
        memory.set_weights(self.point)
        self.at = t

    def displacement(self) -> Tensor:
        """How far the weights have really moved, which rounding decides where steps are small; one vector."""
        memory = self.objective.memory
        if memory.master is None:
            memory.flat.gather(self.point)
        return self.point.sub_(self.origin)


def _highest(values: tuple[float, ...]) -> float:
    return math.nan if any(math.isnan(value) for value in values) else max(values)
