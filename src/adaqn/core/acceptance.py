"""Is the candidate good enough to keep? (Alg. 1, l. 12)

Losses come as scalars or as 1-D tensors of per-example losses; their mean decides.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from adaqn.core.looks import most_lenient

STEP_RECOVERY = 1.02
"""D11: what the halved step multiplier regains with every accepted cycle."""
NONFINITE_PATIENCE = 20
"""D13: non-finite gradients in a row after which the weights return to the anchor."""
CEILING = 10.0
"""D17: how many times the size of the old losses is never noise for the paired test: a few examples that blow up raise
the standard error as they raise the mean."""
SMALLEST_MULTIPLIER = 2.0**-80
"""D15: 24 decades below the step size asked for; what is rejected there is not rejected for its length."""
BEST_FADES = 0.5
"""D23: by which share of its distance to the anchor the best loss is forgotten when it rejects a cycle: the best of
many averages is partly luck, and nothing is held against the weights for ever."""
NOTICEABLE = 0.1
"""D38: the paired test rejects no rise below so many of its levels of standard errors of the mean loss itself.
Differences of paired losses can be certain and far too small to matter, for steps of any length."""
GROUPS = 16
"""D23: what is remembered of the losses at the best average: the means of so many groups of them."""
CHANGED = 1e-3
"""D39: by which share the mean loss at the same weights must have moved, which no order of summation does."""
ROUNDING = 2.0
"""Units of rounding, of the size of the losses, by which their mean may grow without a meaning."""


def is_rejected(f_new: float, f_old: float, factor: float) -> bool:
    """Has the monitored loss got worse by more than noise explains? (Alg. 1, l. 12)

    Sign-safe: for a positive loss this is the paper's ``f_new > factor * f_old`` (D5).
    A new loss that is not finite is always rejected. An old one is finite while the monitoring
    set is fixed; where a changing set makes it not so, that set cannot judge and rejects nothing (D7).

    >>> is_rejected(1.02, 1.0, factor=1.01), is_rejected(-0.98, -1.0, factor=1.01)
    (True, True)
    >>> is_rejected(1.005, 1.0, factor=1.01), is_rejected(float("nan"), 1.0, factor=1.01)
    (False, True)
    """
    if not math.isfinite(f_old):
        return False
    return not f_new <= f_old + (factor - 1.0) * abs(f_old)


class RejectTest(Protocol):
    """Anything that tells from the losses at both points whether the candidate is rejected."""

    def __call__(self, new: Tensor, old: Tensor) -> bool:
        """``new`` at the candidate, ``old`` at the anchor: scalars, or losses of the same examples."""
        ...


class FactorTest:
    """Reject when the mean loss grew by more than ``factor`` (the paper's γ)."""

    def __init__(self, factor: float = 1.01) -> None:
        if not (math.isfinite(factor) and factor >= 1.0):
            raise ValueError(f"the factor of the rejection test must be a finite number of at least 1, got {factor}")
        self.factor = factor

    def __call__(self, new: Tensor, old: Tensor) -> bool:
        return is_rejected(mean_loss(new), mean_loss(old), self.factor)


class PairedTest:
    """Reject when the mean of the paired differences exceeds ``level`` of its standard errors.

    With dᵢ = new_i − old_i over N examples, rejected if mean(d) > level · std(d)/√N, and above rounding and a tenth of
    level · std(old)/√N (D38). Most of the spread of losses between examples is the same at both points and cancels, so
    a hundred examples see changes of a few percent, and do not take for worse what is noise: at level 3 about one cycle
    in a thousand that changed nothing (of differences with a long tail, more: they are not normal).

    The rest is as for the factor test: a new mean that is not finite is rejected (D5), an old one that is not finite
    cannot judge (D7). Where there are no pairs (:meth:`applies`), the factor test decides.

    Args:
        level: standard errors.
        fallback: the test where there are no pairs.

    >>> import torch
    >>> old = torch.tensor([1.0, 5.0, 9.0, 3.0])
    >>> test, noise = PairedTest(level=3.0), torch.tensor([0.3, -0.3, 0.2, -0.1])
    >>> test(old + noise, old), test(old + noise + 1.0, old)
    (False, True)
    """

    def __init__(self, level: float = 3.0, fallback: RejectTest | None = None) -> None:
        if not (math.isfinite(level) and level >= 0.0):
            raise ValueError(f"the paired test's level must be a finite number of at least 0, got {level}: 3 is usual")
        self.level = level
        self.fallback = fallback or FactorTest()

    def applies(self, new: Tensor, old: Tensor) -> bool:
        """Are these losses of the same two or more examples?"""
        return new.dim() == 1 and new.shape == old.shape and len(new) >= 2

    def __call__(self, new: Tensor, old: Tensor) -> bool:
        found = self._difference(new, old)
        if found is None:
            return self.fallback(new, old)
        mean, error, usual, spread = found
        rounding = ROUNDING * torch.finfo(new.dtype).eps if new.is_floating_point() else 0.0
        matters = mean > max(rounding * usual, NOTICEABLE * self.level * spread)
        return matters and (mean > self.level * error or mean > (CEILING - 1.0) * usual)

    def settles(self, new: Tensor, old: Tensor, share: float) -> bool:
        """Do these losses, of that share of the examples, tell that those of all would not reject? (D35)

        Where they would, that is overlooked in at most two of a hundred cycles, however much worse they are:
        :mod:`adaqn.core.looks`. Differences that are all zero tell nothing of the other examples.

        >>> old = torch.linspace(1.0, 2.0, 32)
        >>> noise = 0.1 * torch.cos(torch.arange(32.0))
        >>> [PairedTest(3.0).settles(old + noise + rise, old, share=0.25) for rise in (-0.02, 0.0, 0.02)]
        [True, True, False]
        """
        found = self._difference(new, old)
        if found is None:
            return False
        mean, error, *_ = found
        return mean <= most_lenient(share, self.level) * error and not self(new, old)

    def _difference(self, new: Tensor, old: Tensor) -> tuple[float, float, float, float] | None:
        """Mean and standard error of the paired differences, mean size of the old losses, standard error of their mean.

        All in one unit.
        """
        if not self.applies(new, old) or not math.isfinite(mean_loss(old)) or not math.isfinite(mean_loss(new)):
            return None
        difference = new.double() - old.double()
        scale = float(difference.abs().max())
        if scale == 0.0 or not math.isfinite(scale):
            return None
        difference /= scale  # squares of very large or small losses would leave the range of numbers
        before = old.double() / scale
        usual = float(before.abs().mean())  # a mean near zero says nothing about their size
        return *mean_and_error(difference), usual, mean_and_error(before)[1]

    def has_climbed(self, new: Tensor, old: Tensor, best: Tensor) -> bool:
        """Is the loss worse than the best so far beyond noise, by cycles each of which was within it? (D23)

        ``best`` is :func:`grouped`, of the losses at the best average that was accepted. The rise must be beyond two
        noises. That of the mean at the best: what is less than that says little about other examples, and steps that
        are as long as they may be go up and down by it. And that of the rise itself, group paired with group: where
        most examples are learnt, a few of them are nearly all of the mean, and at the lucky best of many none of these
        is bad. A candidate better than the anchor is on its way down, and is never held back.
        """
        if not self.applies(new, old) or not mean_loss(new) > mean_loss(old):
            return False
        rise = grouped(new) - best
        known = rise.isfinite()
        if int(known.sum()) < 2:
            return False
        mean, error = mean_and_error(rise[known])
        rounding = ROUNDING * torch.finfo(new.dtype).eps * abs(mean_of_groups(best))
        return mean > max(rounding, self.level * error, self.level * mean_and_error(best[known])[1])


class RelativeTest(FactorTest):
    """Reject when (f_new − f_old)/|f_old| exceeds ``tolerance``, the paper's γ̃.

    For positive losses this is the factor test with γ = 1 + γ̃, and it is built as that (D12).
    """

    def __init__(self, tolerance: float = 0.01) -> None:
        if not 0.0 < tolerance < 1.0:
            raise ValueError(f"the tolerance of the relative test must lie between 0 and 1, got {tolerance}")
        super().__init__(1.0 + tolerance)


def halves_step(cycle: int, last: int, window: int) -> bool:
    """Does a rejection at that cycle halve the steps? (D15)

    One rejection may be noise or bad luck. A second one within ``window`` cycles, whatever was stored between the two,
    says that the steps are too large. ``last`` is the cycle of the rejection before, counted from 1; 0 is none.

    >>> halves_step(cycle=12, last=0, window=10), halves_step(12, last=3, window=10), halves_step(12, last=1, window=10)
    (False, True, False)
    """
    return last > 0 and cycle - last <= window


def is_another_function(now: Tensor, before: Tensor) -> bool:
    """Are these losses, of the same examples at the same weights, of two functions? (D39)

    >>> is_another_function(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.00001]))
    False
    >>> is_another_function(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    True
    """
    mean = mean_loss(before)
    return not abs(mean_loss(now) - mean) <= CHANGED * abs(mean)


def mean_loss(losses: Tensor) -> float:
    """The number that decides, as a Python float (one read from the device)."""
    return float(losses.mean())


def mean_and_error(losses: Tensor) -> tuple[float, float]:
    """The mean of the losses and its standard error, 0 where there is one loss only."""
    if losses.numel() < 2:
        return mean_loss(losses), 0.0
    return mean_loss(losses), float(losses.double().std()) / math.sqrt(losses.numel())


def grouped(losses: Tensor) -> Tensor:
    """The means of groups of neighbours among the losses, always as many: inf where there are fewer losses (D23).

    >>> grouped(torch.arange(32.0))[:3].tolist(), int(grouped(torch.ones(5)).isinf().sum())
    ([0.5, 2.5, 4.5], 11)
    """
    known = losses.detach().double().reshape(-1)
    means = [part.mean() for part in known.tensor_split(min(GROUPS, len(known)))]
    return torch.cat([torch.stack(means), known.new_full((GROUPS - len(means),), math.inf)])


def mean_of_groups(means: Tensor) -> float:
    """Of those that are known; inf where none is."""
    known = means[means.isfinite()]
    return mean_loss(known) if len(known) else math.inf


def faded(best: Tensor, old: Tensor) -> Tensor:
    """The best losses in groups, a little nearer to those at the anchor: they have rejected a cycle (D23)."""
    return torch.where(best.isfinite(), best + BEST_FADES * (grouped(old) - best), best)


def risen(best: Tensor) -> float:
    """How far the loss at the anchor is above the best, where each cycle has examples of its own (D23).

    It is the sum of the rises of cycles, each of its own examples, and in the place of the first group.

    >>> risen(as_risen(0.25)), risen(grouped(torch.ones(32))), risen(grouped(torch.tensor(math.inf)))
    (0.25, 0.0, 0.0)
    """
    is_one = bool(best[0].isfinite()) and not bool(best[1:].isfinite().any())
    return float(best[0]) if is_one else 0.0


def as_risen(rise: float) -> Tensor:
    """The same as it is remembered."""
    return grouped(torch.tensor(rise, dtype=torch.float64))


def fixed_best(best: Tensor) -> Tensor:
    """Group means alone: a rise over a rotating monitor's examples says nothing of a fixed batch."""
    return best if bool(best[1:].isfinite().any()) else torch.full_like(best, math.inf)
