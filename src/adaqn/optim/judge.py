"""Is a cycle kept? Losses and counters in, a verdict out: nothing is changed here. (Alg. 1, l. 12)"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from adaqn.core.acceptance import (
    BEST_FADES,
    PairedTest,
    RejectTest,
    as_risen,
    faded,
    fixed_best,
    grouped,
    halves_step,
    mean_loss,
    mean_of_groups,
    risen,
)
from adaqn.core.growth import after_rejected
from adaqn.optim.events import Counters

Why = Literal["", "not finite", "worse", "climbed"]


@dataclass(frozen=True)
class Losses:
    """What is known of a candidate: is it a number at all, and the monitored losses there and at the anchor."""

    is_number: bool = True
    new: Tensor | None = None
    """``None`` where nothing was evaluated."""
    old: Tensor | None = None
    """``None`` also where there is nothing to compare with."""
    first: int | None = None
    """D35: so many of them are of the first look, which every cycle has; ``None`` where there are no looks."""
    rotating: bool = False
    """Has each cycle examples of its own, so that only rises within a cycle compare (D23)?"""
    unread: tuple[Tensor, ...] = ()
    """Of the second look, on the device: no verdict before they are read, with what else the host must know."""

    @property
    def by_first_look(self) -> bool:
        """Are these of the first look alone?"""
        return self.new is not None and self.new.numel() == self.first

    @property
    def means(self) -> tuple[float | None, float | None]:
        """At both points, over the examples of the first look, so that cycles compare; of all if that is no number."""
        return _mean(self.new, self.first), _mean(self.old, self.first)


def _mean(losses: Tensor | None, first: int | None) -> float | None:
    if losses is None:
        return None
    mean = mean_loss(losses)
    return mean_loss(losses.reshape(-1)[:first]) if first and math.isfinite(mean) else mean


@dataclass(frozen=True)
class Verdict:
    """What is to be done with a cycle; :meth:`apply_to` does what concerns the counters and the best loss."""

    rejected: bool
    why: Why = ""
    halve: bool = False
    """Are the steps too large? At most once per cycle, whichever rules ask for it (D24)."""
    best: Tensor | None = None
    """The best losses from now on, in groups (D23); ``None`` is as before."""
    rejections_in_row: int = 0
    rejected_at: int = 0

    def apply_to(self, c: Counters, best: Tensor) -> None:
        c.rejections_in_row, c.rejected_at = self.rejections_in_row, self.rejected_at
        if self.best is not None:
            best.copy_(self.best)
        if self.rejected:
            c.step_multiplier = after_rejected(c.step_multiplier)
        if self.halve:
            c.halve_steps()


@dataclass(frozen=True)
class Judge:
    """The rules: which losses are rejected, and which rejections halve the steps."""

    test: RejectTest | None = None
    """``None`` rejects nothing by its loss."""
    window: int = 0
    """D15: a second rejection within so many cycles halves the steps; 0 leaves that to ``patience``."""
    patience: int = 0
    """D11: so many rejections in a row with an empty memory do; 0 is never."""
    first_look: int = 0
    """D35: so many examples may settle a verdict of the paired test; 0 is all of them, always."""
    growth: float = 1.0
    """D37: how many times their usual length the steps may have."""

    @property
    def judges_first_cycle(self) -> bool:
        """Against the weights before the first step (D15)?"""
        return self.window > 0

    def verdict(self, losses: Losses, c: Counters, pairs: int, best: Tensor) -> Verdict:
        """On a cycle that ended with these losses; ``pairs`` are in memory, and ``best`` are the best losses so far."""
        new, old = losses.new, losses.old
        if not losses.is_number:
            return self.rejection("not finite", c, pairs)  # D13
        if new is None or self.test is None:
            return self._kept(c)
        test = self.test if isinstance(self.test, PairedTest) else None
        by_all = test is not None and not losses.by_first_look  # D35: the best is of all examples
        if old is None or not math.isfinite(mean_loss(old)):  # D5, D7: nothing to compare with
            return self._kept(c, lowest(fixed_best(best), new) if by_all and not losses.rotating else None)
        if not math.isfinite(mean_loss(new)) or self.test(new.clone(), old.clone()):  # it may be a user's
            return self.rejection("worse", c, pairs)
        if test is None or not (by_all or losses.rotating):
            return self._kept(c)
        if losses.rotating:
            rise = risen(best)
            if by_all and test.has_climbed(new, old, grouped(old) - rise):  # D23
                return self.rejection("climbed", c, pairs, best=as_risen((1.0 - BEST_FADES) * rise))
            return self._kept(c, as_risen(max(0.0, rise + mean_loss(new) - mean_loss(old))))
        best = lowest(fixed_best(best), old)  # D35: the anchor may have been accepted on a first look
        if test.has_climbed(new, old, best):  # D23
            return self.rejection("climbed", c, pairs, best=faded(best, old))
        return self._kept(c, lowest(best, new))

    def fell(self, losses: Losses) -> bool | None:
        """Is the loss lower at the candidate than at the anchor (D37)? ``None`` where they do not compare.

        By the first few examples, whatever the verdict needed: the same ones for any number of processes.
        """
        new, old = _mean(losses.new, self.first_look), _mean(losses.old, self.first_look)
        return None if new is None or old is None or not math.isfinite(old) else new < old

    def rejection(self, why: Why, c: Counters, pairs: int, *, best: Tensor | None = None) -> Verdict:
        """Reject, whatever the losses say, and find out whether the steps are too large."""
        now, in_row = c.cycles + 1, c.rejections_in_row
        if self.window:
            too_large = halves_step(now, c.rejected_at, self.window)  # D15
            return Verdict(True, why, too_large or why == "climbed", best, in_row, now)
        in_row = in_row + 1 if pairs == 0 else 0
        too_large = 0 < self.patience == in_row  # D11: H0 alone, rejected again and again
        in_row = 0 if too_large else in_row
        return Verdict(True, why, too_large or why == "climbed", best, in_row, c.rejected_at)

    def lost(self, c: Counters, pairs: int) -> Verdict:
        """No gradient is finite any more (D13): that is no rejection of a candidate, and D11 does not count it."""
        if self.window:
            return self.rejection("not finite", c, pairs)
        return Verdict(True, "not finite", False, None, c.rejections_in_row, c.rejected_at)

    def _kept(self, c: Counters, best: Tensor | None = None) -> Verdict:
        return Verdict(False, "", False, best, 0, c.rejected_at)


def lowest(best: Tensor, losses: Tensor) -> Tensor:
    """The best so far, or these losses if their mean is lower; both in groups (D23). No number is no loss."""
    return min(best, grouped(losses), key=mean_of_groups) if math.isfinite(mean_loss(losses)) else best
