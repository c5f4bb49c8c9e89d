"""What a method for whole gradients counts, and what it tells about itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from adaqn.core.outcome import Outcome

FORMAT = 1
"""Version of the saved state; raise it with any change, and migrate or refuse what is older."""


@dataclass
class Counters:
    """Plain numbers that change from iteration to iteration; all of them are saved."""

    n_iter: int = 0
    """Iterations, and below evaluations of the closure, by the names that torch has for them."""
    func_evals: int = 0
    calls: int = 0
    """Of ``step``; the seed of a closure that takes one."""
    stored: int = 0
    skipped: int = 0
    restarts: int = 0
    """Searches that failed, after which the memory was emptied, or the gradient itself was followed."""
    nonfinite: int = 0
    """Evaluations whose loss or gradient was not finite."""
    gamma: float = 1.0
    """The factor of H0."""
    has_scale: int = 0
    """Has a pair of these parameters told it?"""
    shorter: float = 0.0
    """The first length of the next search, where a budget ended the last one before it found a lower loss."""
    idle: int = 0
    """Steps in a row in which the weights did not move though they should have."""
    difference: float = 0.0
    """Between the last two losses of the same weights."""
    noise: float = 0.0
    """By how much such losses differ: the smaller of two differences in a row, so that a loss that was changed once,
    or weights, are not taken for noise."""
    has_loss: int = 0
    loss: float = 0.0
    """At the end of the last step, where it is known: of either sign."""
    first_loss: float = 0.0
    """The size of the loss at the beginning, from which the size of rounding errors is known; 0 before it."""
    pending: int = 0
    """Without a line search: does a step wait for the gradient behind it?"""

    in_matrix: int = 0
    """Pairs in a full matrix since it began; 0 where there is none."""
    begun: int = 0
    """Has it begun?"""

    def note_loss(self, loss: float | None) -> None:
        self.has_loss, self.loss = int(loss is not None), loss or 0.0

    def note_difference(self, loss: float) -> None:
        """The loss of the same weights once more: on another sample, or with other rounding errors."""
        if self.has_loss and math.isfinite(loss):
            before, self.difference = self.difference, abs(loss - self.loss)
            self.noise = min(before, self.difference)


@dataclass(frozen=True)
class WholeStats:
    """Totals since the optimizer was made; they are saved with its state."""

    steps: int
    """Calls of ``step``."""
    iterations: int
    evaluations: int
    stored: int
    skipped: int
    restarts: int
    """Failed searches, after which the pairs were dropped or the gradient itself was followed."""
    nonfinite: int
    """Evaluations with a non-finite loss or gradient; each shortened a step."""
    pairs: int
    """Curvature pairs in memory now; for a full matrix, all pairs since it started."""
    loss: float | None
    """The loss at the end of the last step."""
    noise: float
    """How much losses at the same weights have differed."""
    reason: str
    """Why the last step ended."""
    idle: int = 0
    """Consecutive steps that used up their evaluations and found no lower loss."""


@dataclass(frozen=True)
class Iteration:
    """One iteration: a direction, a search along it, a pair."""

    step: int
    """Number of iterations so far, including this one."""
    evaluations: int
    """Number of evaluations so far."""
    outcome: Outcome
    """Whether its pair was stored or skipped, or the search failed (``REJECTED``)."""
    loss: float
    previous_loss: float
    gradient: float
    """The largest absolute value of the gradient after the step."""
    length: float
    """t of w ← w + t·d."""
    trials: int
    """Number of evaluations of this search."""
    pairs: int
    gamma: float
    search: str
    """How the search ended."""

    @property
    def cycle(self) -> int:
        """The same as ``step``, by the name that logs of cycles know."""
        return self.step

    def as_dict(self) -> dict[str, float]:
        """Plain numbers by name, for any log."""
        values = {
            name: float(getattr(self, name))
            for name in ("loss", "previous_loss", "gradient", "length", "trials", "pairs", "gamma", "evaluations")
        }
        for outcome in (Outcome.STORED, Outcome.SKIPPED, Outcome.REJECTED):
            values[outcome.value] = float(self.outcome is outcome)
        return values


IterationCallback = Callable[[Iteration], None]
