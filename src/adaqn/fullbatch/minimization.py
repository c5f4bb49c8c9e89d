"""One call of ``step``: iterations of direction, search and pair, until something ends them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from adaqn.core.full_matrix import along_the_line
from adaqn.core.line_search import Found, LineSearch, Trial
from adaqn.core.outcome import Outcome
from adaqn.fullbatch.closure import NO_GRADIENT, BudgetSpentError
from adaqn.fullbatch.events import Counters, Iteration
from adaqn.fullbatch.line import Line, Objective, ResampledError
from adaqn.parameters.flat import FlatParameters

FIRST_STEP = 1e-3
"""How far the first trial moves the weight that moves farthest, before any pair has told a scale; times lr."""
SHORTER = 0.1
"""Of the shortest length that was tried when a budget ended a search: the first one of the next."""
MOST_ROUNDING = 1e-3
"""Of the loss: rounding is never taken to be more."""
MOST_RESAMPLED = 3
"""New samples in the middle of a search, in a row, after which it is hopeless."""

BUDGET = "the budget of evaluations (max_eval) is spent"
NOT_FINITE = "the loss or the gradient is not finite, so the weights stay as they are"
BEYOND = "the step leads to weights that are not finite, so they stay as they are"


class Model(Protocol):
    """What is known of the curvature: a memory of pairs, or a matrix."""

    flat: FlatParameters
    counters: Counters

    @property
    def knows(self) -> int:
        """How many pairs are at work; to forget them gives another direction only if there are any."""
        ...

    @property
    def is_plain(self) -> bool:
        """Is the direction that of the gradient where no pair is known?"""
        ...

    @property
    def has_scale(self) -> bool:
        """Has a pair told how long steps along H0's direction should be?"""
        ...

    def read_weights(self, out: Tensor) -> Tensor: ...
    def see(self, gradient: Tensor, present: list[int]) -> None: ...
    def direction(self, gradient: Tensor) -> Tensor: ...
    def descent(self, gradient: Tensor) -> Tensor: ...
    def offer(self, s: Tensor, y: Tensor, along: float) -> Outcome: ...
    def forget(self) -> None: ...
    def wait_for_gradient(self, s: Tensor, gradient: Tensor) -> None: ...
    def pair_that_waited(self, gradient: Tensor) -> None: ...


@dataclass(frozen=True)
class Limits:
    """When a step ends, as in torch.optim.LBFGS."""

    lr: float
    max_iter: int
    max_eval: int
    tolerance_grad: float
    tolerance_change: float


class Stop(Exception):  # noqa: N818 - no error: the ordinary end of a step
    """The step ends here, for this reason."""


class Minimization:
    """The iterations of one step.

    Args:
        model: the curvature.
        objective: loss and gradient.
        search: along a direction; ``None`` takes the first length as it is.
        limits: when to stop.
        noise: which differences of losses mean nothing; ``None`` goes by what was seen, and by rounding.
        tell: told after each iteration.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        search: LineSearch | None,
        limits: Limits,
        noise: float | None,
        tell: Callable[[Iteration], None],
    ) -> None:
        self.model, self.objective, self.search, self.limits = model, objective, search, limits
        self.noise, self.tell = noise, tell
        self.counters, self.evaluations = model.counters, objective.evaluations
        self.value, self.gradient = math.nan, torch.empty(0)
        """At the weights as they are."""

    def run(self, value: float, gradient: Tensor) -> str:
        """From loss and gradient at the weights as they are, until something ends it: what did."""
        self.value, self.gradient = value, gradient
        try:
            self._begin()
            for iteration in range(1, self.limits.max_iter + 1):
                self._iterate(last=iteration == self.limits.max_iter)
            reason = "max_iter iterations were made"
        except Stop as stop:
            reason = str(stop)
        return reason

    def _begin(self) -> None:
        (size,) = self.objective.largest(self.gradient)
        if self.evaluations.stale:
            raise Stop(NO_GRADIENT)
        if not (math.isfinite(self.value) and math.isfinite(size)):
            self.counters.nonfinite += 1
            raise Stop(NOT_FINITE)
        self.counters.first_loss = self.counters.first_loss or abs(self.value)
        self.model.pair_that_waited(self.gradient)
        if self.limits.lr == 0.0:
            raise Stop("lr is 0")
        if size == 0.0:
            raise Stop("the gradient is zero")
        self._check_gradient(size)

    def _iterate(self, *, last: bool) -> None:
        """One iteration; raises Stop if nothing is left to do behind it."""
        before, spent = self.value, self.evaluations.count
        if self.evaluations.left <= 0 and self.search is not None:
            raise Stop(BUDGET)
        self.counters.n_iter += 1
        self.model.see(self.gradient, self.objective.present)
        found, outcome, moved = self._step_on_one_sample(last=last)
        (size,) = self.objective.largest(self.gradient)
        c, trials = self.counters, self.evaluations.count - spent
        event = Iteration(
            c.n_iter, c.func_evals + self.evaluations.count, outcome, self.value, before, size, found.trial.t, trials,
            self.model.knows, c.gamma, found.reason,
        )  # fmt: skip
        self.tell(event)
        if last:
            return
        if self.evaluations.left <= 0:
            raise Stop(BUDGET)
        self._check_gradient(size)
        if moved <= self.limits.tolerance_change:
            raise Stop("the weights moved by at most tolerance_change")
        if abs(self.value - before) < self.limits.tolerance_change:
            raise Stop("the loss changed by less than tolerance_change")

    def _check_gradient(self, size: float) -> None:
        if size <= self.limits.tolerance_grad:
            raise Stop("the gradient is within tolerance_grad")

    def _step_on_one_sample(self, *, last: bool) -> Step:
        """Where the closure takes another sample in the middle of a search, the search begins again on that one."""
        for _ in range(MOST_RESAMPLED):
            try:
                return self._step(last=last)
            except ResampledError:
                self._evaluate_here()
        raise RuntimeError(
            f"the closure called resampled() in {MOST_RESAMPLED} searches in a row: a search compares losses of one "
            "sample, so take a new one between two steps, or after many evaluations"
        )

    def _evaluate_here(self) -> None:
        try:
            self.value, self.gradient = self.objective.here()
        except BudgetSpentError:
            raise Stop(BUDGET) from None
        (size,) = self.objective.largest(self.gradient)
        if not (math.isfinite(self.value) and math.isfinite(size)):
            self.counters.nonfinite += 1
            raise Stop(NOT_FINITE)

    def _step(self, *, last: bool) -> Step:
        """Along the first direction that leads down."""
        reason = "no direction leads down"
        c = self.counters
        for direction, usual in self._directions():
            first = min(usual, c.shorter) if c.shorter else usual
            (slope,) = self.objective.products((self.gradient, direction))
            if not slope < 0.0:
                continue
            if slope > -self.limits.tolerance_change:
                raise Stop("the slope is within tolerance_change")
            origin = self.model.flat.new()
            line = Line(self.objective, self.model.read_weights(origin), direction)
            walls = self.objective.nonfinite
            try:
                if self.search is None:
                    return self._fixed(line, first, slope, last=last)
                found = self._search(line, Trial(0.0, self.value, slope, self.gradient), first, self.search)
            except BaseException:
                line.move(0.0)
                raise
            if found.trial.t > 0.0:
                c.shorter, c.idle = 0.0, 0
                outcome, moved = self._take(line, found.trial, slope)
                if not found.success and self.evaluations.left > 0 and self.objective.nonfinite == walls:
                    # What is known of the curvature misleads; before a wall it need not.
                    self._start_again()
                return found, outcome, moved
            line.move(0.0)
            if self.evaluations.left <= 0:
                c.idle += 1
                learnt = self._learn_without_going(line, slope)
                # The next step goes on where this one was cut off: by the pair, or where that is not enough, shorter.
                c.shorter = 0.0 if learnt and c.idle == 1 else SHORTER * line.shortest
                raise Stop(BUDGET)
            c.shorter = 0.0
            reason = f"the search found no lower loss along the gradient itself: {found.reason}"
        raise Stop(reason)

    def _directions(self) -> Iterator[tuple[Tensor, float]]:
        """That of the method; where it fails H0's alone, without pairs; and then the gradient's. Each with a length."""
        lr = self.limits.lr
        if self.model.knows:
            yield self.model.direction(self.gradient), lr
            self._start_again()
        if not self.model.is_plain:
            direction = self.model.direction(self.gradient)
            (longest,) = self.objective.largest(direction)
            is_short = self.model.has_scale or longest == 0.0
            yield direction, lr if is_short else lr * min(1.0, FIRST_STEP / longest)
            self.counters.restarts += 1
        descent = self.model.descent(self.gradient)
        if self.model.is_plain and self.counters.n_iter > 1 and self.counters.restarts == 0:
            yield descent, lr  # as torch does, where no pair was fit to store yet
        total = float(self.model.flat.settle(self.gradient.abs().sum().double().reshape(1)))
        yield descent, lr * min(1.0, 1.0 / total)

    def _start_again(self) -> None:
        self.counters.restarts += 1
        self.model.forget()

    def _search(self, line: Line, start: Trial, first: float, search: LineSearch) -> Found:
        (longest,) = self.objective.largest(line.direction)
        resolution = self.limits.tolerance_change / longest if longest else 0.0
        budget = self.evaluations.left
        try:
            noise = max(self.counters.noise, self._rounding()) if self.noise is None else self.noise
            found = search(line, start, first, budget=budget, noise=noise, resolution=resolution)
        except BudgetSpentError:
            raise RuntimeError(
                f"the line search evaluated more often than its budget of {budget}: it must return by then"
            ) from None
        if not isinstance(found, Found) or (found.trial.t > 0.0 and found.trial.gradient is None):
            raise TypeError(
                f"the line search must return a Found with one of the trials that it was given, and returned {found!r}"
            )
        return found

    def _rounding(self) -> float:
        """By how much rounding may change the loss.

        Most losses are means of squares of differences, between a network and its targets for instance. Those numbers
        are about √F, with F the loss at the beginning; each is rounded by ε√F, which changes a loss f by ε√(fF). That
        is far more than εf where f is small.
        """
        size, eps = abs(self.value), torch.finfo(self.model.flat.dtype).eps
        return min(eps * math.sqrt(size) * math.sqrt(max(size, self.counters.first_loss)), MOST_ROUNDING * size)

    def _take(self, line: Line, trial: Trial, slope: float) -> tuple[Outcome, float]:
        """Go to the point that a search has found, and learn the pair: (what became of it, how far it was)."""
        if line.at != trial.t:
            line.move(trial.t)
        assert trial.gradient is not None
        s, y = line.displacement(), trial.gradient - self.gradient
        (moved,) = self.objective.largest(s)
        outcome = self.model.offer(s, y, along_the_line(trial.t, slope))
        self.value, self.gradient = trial.value, trial.gradient
        return outcome, moved

    def _learn_without_going(self, line: Line, slope: float) -> bool:
        """The budget has ended a search that found nothing lower. Its last trial is a pair all the same, and tells how
        much shorter the next step along such a direction should be; without it the next call would try the same.
        """
        trial = line.last
        if trial is None or trial.gradient is None:
            return False
        s, y = trial.t * line.direction, trial.gradient - self.gradient
        return self.model.offer(s, y, along_the_line(trial.t, slope)) is Outcome.STORED

    def _fixed(self, line: Line, t: float, slope: float, *, last: bool) -> Step:
        """Without a search; the last step of a call waits for the gradient that the next call brings."""
        line.move(t)
        (size,) = self.objective.largest(self.model.flat.gather(self.model.flat.new()))
        if not math.isfinite(size):
            self.counters.nonfinite += 1
            self._turn_back(line, BEYOND)
        (moved,) = self.objective.largest(line.direction)
        if last or self.evaluations.left <= 0:
            self.model.wait_for_gradient(line.displacement(), self.gradient)
            return Found(Trial(t, self.value, math.nan), True, "no search", 0), Outcome.SKIPPED, t * moved
        trial = line(t)
        if not trial.finite:
            self._turn_back(line, NOT_FINITE)
        outcome, moved = self._take(line, trial, slope)
        return Found(trial, True, "no search", 1), outcome, moved

    def _turn_back(self, line: Line, reason: str) -> NoReturn:
        """To where the step began. Pairs and their scale have misled it, and would again: the next step is short."""
        line.move(0.0)
        self._start_again()
        self.counters.has_scale = 0
        raise Stop(reason)


Step = tuple[Found, Outcome, float]
"""What a search has found, what became of the pair, and how far the weights went."""
