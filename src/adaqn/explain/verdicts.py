"""What the verdicts say about the step size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adaqn.core.acceptance import STEP_RECOVERY
from adaqn.core.growth import LONGER, SHORTER
from adaqn.core.outcome import Outcome
from adaqn.explain.finding import (
    FEWEST_CYCLES,
    HINT,
    NOTE,
    WARNING,
    Finding,
    among,
    asked_size,
    growth,
    middle,
    percent,
    schedule,
    span,
    times,
)
from adaqn.explain.record import Record
from adaqn.optim.events import CycleEvent

MANY_REJECTED = 0.25
SMALL_RISE = 0.1
"""A rejected rise that may well be the noise of a monitoring set."""
ACCEPTED_RISE = 0.05
SLOW_FALL = 0.05
SLOW_CYCLES = 20
STEADY_CYCLES = 80
"""Of a run, after which a loss that falls in nearly every cycle says that steps are short: at good step sizes it then
rises in a third of them (``experiments/LOG.md``)."""
NEARLY_ALL = 0.9
CREEPING = 0.005
"""Share of the loss by which a cycle of steps as long as lr lowers it: less where lr is far too small. Wherever steps
grew without a pause, on ten small networks, it was 0.01 to 0.45 % at a hundredth to a thirteenth of the default lr (one
rose to 0.6 %), and at least 0.6 % at the default, 0.3 % near the end of a cosine."""
LONG_UNPAUSED = 40
"""Cycles of growth without a pause after which lr is too small, whatever a cycle does. On the tasks of the study, at
the default, growth paused after 21 to 42 of them, and after 46 to 59 where three times the default is better."""
WARMS_UP = 1.25
"""How many times as much as before a cycle does while a schedule lengthens the steps: 1.5 to 3 in a long warm-up, at
most 0.5 in steps that are too short without one."""
UNPAUSED = 0.75
"""Of the fastest growth there can be: two pauses in the first 40 cycles."""
ONE_HALVING, TWO_HALVINGS = 0.4, 0.2
"""One is what the rule is for; after three lr is plainly too large."""
MANY_HALVINGS = 2.0**-8
"""Steps so much shorter that their length is hardly the reason for a rejection."""
LOOK_AT_MONITOR = (
    "look at the monitor: does it return a loss of this model, lower is better, on training data, without randomness?"
)
LOOK_AT_LOSS = (
    "look at the loss and the data: what makes them, or their gradients, inf or nan however short the steps are?"
)


def _look(record: Record) -> str:
    """At what the verdicts come from."""
    return LOOK_AT_MONITOR if any(map(_is_judged, record.cycles)) else LOOK_AT_LOSS


def many_rejected(record: Record) -> Finding | None:
    rejected = [c for c in record.cycles if c.outcome is Outcome.REJECTED and _is_judged(c)]
    share = len(rejected) / max(1, len(record.cycles))
    if len(record.cycles) < FEWEST_CYCLES or share < MANY_REJECTED:
        return None
    rise = middle([record.rise(cycle) for cycle in rejected])
    by = "" if rise is None else f"; the monitored loss had {growth(rise)} in the median"
    nothing = "" if len(rejected) < len(record.cycles) else ", and nothing was accepted"
    if _is_hopeless(record):
        change = f"if such steps are small for this model, {_look(record)}"
    else:
        change = f"lower lr, now {asked_size(record, record.stats.step_multiplier)}{schedule(record)}"
        if rise is not None and rise < SMALL_RISE:
            change += ", or enlarge the monitoring set" + _other_test(record)
        if len(rejected) == len(record.cycles):
            change += f"; {_look(record)}"
    return Finding(
        "many-rejected", WARNING, f"{len(rejected)} of {among(record)} rejected ({percent(share)}){nothing}{by}", change
    )


def _other_test(record: Record) -> str:
    s = record.settings
    if s.acceptance == "factor":
        return ", or take its noise into account: reject='paired' with one loss per example"
    return "" if s.paired_level is None else f", or reject=RejectOptions(level=...) above {s.paired_level:g}"


def steps_shrunk(record: Record) -> Finding | None:
    """D11, D15 and D23 at work."""
    multiplier = record.stats.step_multiplier
    if multiplier >= 0.99:
        return None
    left = math.ceil(math.log(1.0 / multiplier) / math.log(STEP_RECOVERY))
    now = asked_size(record, multiplier)
    what = (
        f"repeated rejections have shrunk the steps to {percent(multiplier)} of lr={asked_size(record)}, that is {now}"
        f"{schedule(record)}"
    )
    if _is_hopeless(record):
        return Finding(
            "steps-smallest",
            WARNING,
            f"{what}, and cycles are still rejected, so probably not because of their length",
            _look(record),
        )
    return Finding(
        "steps-shrunk",
        NOTE if multiplier > ONE_HALVING else HINT if multiplier > TWO_HALVINGS else WARNING,
        f"{what}; every accepted cycle lengthens them by 2 %, {times(left, 'more cycle')} restore them",
        f"lr={now} if they do not recover",
    )


def accepted_rise(record: Record) -> Finding | None:
    """Each rise passes for noise, and together they are none."""
    accepted = [c for c in record.cycles if c.outcome is not Outcome.REJECTED and _is_judged(c)]
    if len(accepted) < FEWEST_CYCLES or record.settings.rotating:
        return None
    rise = record.change(accepted[0].anchor_loss, accepted[-1].candidate_loss)
    worse = sum((record.rise(cycle) or 0.0) > 0.0 for cycle in accepted)
    if rise is None or rise < ACCEPTED_RISE or worse <= len(accepted) / 2:
        return None
    s = record.settings
    if record.count(Outcome.REJECTED) >= MANY_REJECTED * len(record.cycles):
        return Finding(
            "accepted-rise",
            WARNING,
            f"the monitored loss got worse by {percent(rise)} in {span(record)}, although many cycles were rejected",
            _look(record),
        )
    stricter = "" if s.reject_factor is None else f", or reject=RejectOptions(factor=...) below {s.reject_factor:g}"
    if s.acceptance == "paired" and s.paired_level is not None and any(c.examples for c in accepted):
        stricter = f", or reject=RejectOptions(level=...) below {s.paired_level:g}"
    return Finding(
        "accepted-rise",
        WARNING,
        f"the monitored loss got worse by {percent(rise)} in {span(record)}, in {worse} of {len(accepted)} accepted "
        "ones: each rise alone looks like noise",
        f"lower lr, now {asked_size(record, record.stats.step_multiplier)}{schedule(record)}; a larger monitoring set"
        f"{stricter}. If the training loss falls meanwhile, the monitored batch is not from the training split",
    )


def slow(record: Record) -> Finding | None:
    """Steps that are never too large, and a loss that falls little by little, or steadily for a long time.

    Steps that may grow do so by themselves (D37): there is something to say when they are as long as they may be, or
    plainly on their way there.
    """
    judged = [c for c in record.cycles if _is_judged(c)]
    s, stats = record.settings, record.stats
    if len(judged) < SLOW_CYCLES or s.rotating or stats.step_multiplier < 1.0 or record.count(Outcome.REJECTED):
        return None
    fallen = sum((record.rise(cycle) or 0.0) < 0.0 for cycle in judged)
    fall = record.change(judged[0].anchor_loss, judged[-1].candidate_loss)
    if fallen < NEARLY_ALL * len(judged) or fall is None or not -1.0 < fall < 0.0:
        return None
    if not _is_at_limit(record, fall) and not _grows_too_long(record, judged):
        return None
    grown = f"steps have grown to {stats.step_multiplier:.2g} times lr, " if s.growth > 1.0 else ""
    if grown and stats.step_multiplier >= s.growth:
        grown += "their limit, "
    return Finding(
        "slow",
        HINT,
        f"{grown}none of {among(record)} rejected, and the monitored loss fell in {fallen} of {len(judged)} of them, "
        f"by {percent(-fall)} in all",
        f"if it should fall much further, {'next time ' if s.is_scheduled_down else ''}try lr={asked_size(record, 3.0)}"
        f"{schedule(record)}, three times as much: steps that are too large are rejected",
    )


def _is_at_limit(record: Record, fall: float) -> bool:
    """Are steps as long as they may be, and the loss falls on? Not where a schedule has made them short."""
    s, stats = record.settings, record.stats
    steady = (stats.cycles >= STEADY_CYCLES or s.growth > 1.0) and not stats.rejected
    return not s.is_scheduled_down and stats.step_multiplier >= s.growth and (steady or fall > -SLOW_FALL)


def _grows_too_long(record: Record, judged: Sequence[CycleEvent]) -> bool:
    """Have steps grown since the first cycle with hardly a pause, for long or while a cycle does little?

    At good step sizes steps grow in the first cycles too, but there a cycle of steps as long as lr does much. In a
    warm-up it does little as well, but more and more.
    """
    s = record.settings
    if s.growth <= 1.0 or record.stats.rejected:
        return False
    near_limit = s.growth * SHORTER**2
    late = [c for c in judged if c.cycle >= SLOW_CYCLES]
    if any(c.step_multiplier < min(near_limit, LONGER ** (UNPAUSED * c.cycle)) for c in late):
        return False
    half = len(judged) // 2
    if _fall_at_lr(record, judged[half:]) > WARMS_UP * _fall_at_lr(record, judged[:half]):
        return False
    return record.stats.cycles >= LONG_UNPAUSED or _fall_at_lr(record, judged) < CREEPING


def _fall_at_lr(record: Record, cycles: Sequence[CycleEvent]) -> float:
    """By which share a cycle would have lowered the loss in the mean, with steps as long as lr.

    Cycle by cycle, for not all are judged by the same examples (D35).
    """
    return -sum(record.rise(cycle) or 0.0 for cycle in cycles) / sum(cycle.step_multiplier for cycle in cycles)


def _is_hopeless(record: Record) -> bool:
    """Are steps that were halved again and again still rejected?"""
    latest = record.cycles[-10:]
    rejected = sum(cycle.outcome is Outcome.REJECTED for cycle in latest)
    return record.stats.step_multiplier <= MANY_HALVINGS and rejected >= MANY_REJECTED * len(latest)


def _is_judged(cycle: CycleEvent) -> bool:
    losses = (cycle.candidate_loss, cycle.anchor_loss)
    return all(loss is not None and math.isfinite(loss) for loss in losses)
