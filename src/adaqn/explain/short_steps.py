"""Are the steps too short? The monitored loss then falls in nearly every cycle, where good steps are mostly noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adaqn.core.outcome import Outcome
from adaqn.explain.finding import HINT, Finding, among, is_judged, number, one_or_range, percent
from adaqn.explain.record import Record
from adaqn.optim.events import CycleEvent

SLOW_FALL = 0.05
SLOW_CYCLES = 20
START = 20
"""The loss falls in nearly all of so many first cycles at good step sizes too: there is a long way to go."""
IF_GOOD, IF_SHORT = 0.7, 0.92
"""The share of cycles in which the loss falls after that: at most, at a good step size; at a third of it. In
``experiments/LOG.md`` 0.5 to 0.7, and 0.9 and more."""
ODDS = 50.0
"""How much more likely the cycles must be with short steps than with good ones, as in Wald's sequential test. His
bound on false alarms, one in fifty, does not hold here: cycles are not independent, and only the last 40 are known."""


def slow(record: Record) -> Finding | None:
    """Steps that are never too large, and a loss that falls little by little, or in nearly every cycle."""
    s, full = record.settings, _at_full_size(record)
    judged = [cycle for cycle in full if is_judged(cycle)]
    if s.rotating or record.stats.step_multiplier < 1.0 or not judged or _still_grows(record):
        return None
    if any(cycle.outcome is Outcome.REJECTED for cycle in (*record.cycles, *full)):
        return None
    later = [cycle for cycle in judged if cycle.cycle > START]
    if _odds(record, later) >= ODDS:
        shown = later
    elif len(judged) >= SLOW_CYCLES and _odds(record, judged) >= ODDS and _fall(record, judged) < SLOW_FALL:
        shown = judged
    else:
        return None
    fall, fallen = _fall(record, shown), _fallen(record, shown)
    if not 0.0 < fall < 1.0:
        return None
    which = "of them" if len(shown) == len(record.cycles) else "with steps of full size after the start"
    return Finding(
        "slow",
        HINT,
        f"none of {among(record)} rejected, and the monitored loss fell in {fallen} of {len(shown)} {which}, by "
        f"{percent(fall)} in all",
        f"if it should still go far, try lr={_three_times(record, full)}, three times as much: what is too large is "
        "rejected",
    )


def _at_full_size(record: Record) -> Sequence[CycleEvent]:
    """Cycles that say something of the step size that was chosen: no warm-up, and no end of a schedule."""
    if record.full:
        peak = max(cycle.lr or 0.0 for cycle in record.full)
        return record.full if peak >= 0.5 * max(record.settings.full_lr, default=0.0) else ()
    return () if record.settings.is_scheduled_down else record.cycles


def _still_grows(record: Record) -> bool:
    """Does a schedule lengthen the steps at present? What they will be like is not known yet."""
    sizes = [cycle.lr for cycle in record.cycles[-2:] if cycle.lr is not None]
    return len(sizes) == 2 and sizes[0] < sizes[1]


def _odds(record: Record, cycles: Sequence[CycleEvent]) -> float:
    """How many times more likely these cycles are if steps are short."""
    fallen = _fallen(record, cycles)
    rose = len(cycles) - fallen
    return math.exp(fallen * math.log(IF_SHORT / IF_GOOD) + rose * math.log((1.0 - IF_SHORT) / (1.0 - IF_GOOD)))


def _fallen(record: Record, cycles: Sequence[CycleEvent]) -> int:
    return sum((record.rise(cycle) or 0.0) < 0.0 for cycle in cycles)


def _fall(record: Record, cycles: Sequence[CycleEvent]) -> float:
    """From the first to the last of them, relative to the loss."""
    return -(record.change(cycles[0].anchor_loss, cycles[-1].candidate_loss) or 0.0)


def _three_times(record: Record, full: Sequence[CycleEvent]) -> str:
    """The step sizes of the groups as they were at their longest, times three."""
    s = record.settings
    groups = s.full_lr or s.lr
    peak = max((cycle.lr for cycle in full if cycle.lr is not None), default=max(groups))
    if max(groups) == 0.0:  # somebody has set them to 0, and only the cycles know what they were
        return number(3.0 * peak)
    return one_or_range(3.0 * peak * lr / max(groups) for lr in groups)
