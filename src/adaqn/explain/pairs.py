"""Which pairs were stored, and why the others were not."""

from __future__ import annotations

import math
from collections import Counter

from adaqn.core.outcome import Outcome
from adaqn.core.pairs import is_usable
from adaqn.explain.finding import (
    FEWEST_CYCLES,
    HINT,
    NOTE,
    WARNING,
    Finding,
    middle,
    number,
    span,
    times,
)
from adaqn.explain.record import Record
from adaqn.optim.events import CycleEvent

MANY_SKIPPED = 0.5
STALE = 20
"""Cycles after which the newest pair is of another part of the landscape."""
LONG_WAIT = 5
"""Skips in a row after which a rejection would lose many cycles."""

STILL, OVERFLOW, FLAT, NEGATIVE, SMALL = "still", "overflow", "flat", "negative", "small"


def reason(cycle: CycleEvent) -> str:
    """Why its pair was skipped."""
    ss, sy, yy = cycle.ss or 0.0, cycle.sy or 0.0, cycle.yy or 0.0
    if not all(map(math.isfinite, (ss, sy, yy))):
        return OVERFLOW
    if ss == 0.0:
        return STILL
    if sy < 0.0:
        return NEGATIVE
    return SMALL if is_usable(sy, yy) else FLAT


def pairs_skipped(record: Record) -> Finding | None:
    skipped = [cycle for cycle in record.cycles if cycle.outcome is Outcome.SKIPPED]
    formed = len(skipped) + record.count(Outcome.STORED)
    if formed < FEWEST_CYCLES or len(skipped) < MANY_SKIPPED * formed:
        return None
    why, _ = Counter(map(reason, skipped)).most_common(1)[0]
    alike = [cycle for cycle in skipped if reason(cycle) == why]
    of_them = "" if len(alike) == len(skipped) else f", {len(alike)} of them because"
    explained, change = EXPLAINED[why](record, alike)
    return Finding(f"skipped-{why}", WARNING, f"{len(skipped)} of {formed} pairs skipped{of_them}: {explained}", change)


def _still(record: Record, skipped: list[CycleEvent]) -> tuple[str, str]:
    s, what = record.settings, "the average of the weights did not move at all"
    if s.dtype in ("bfloat16", "float16"):
        change = f"steps with lr={number(max(s.lr))} may be too small for {s.dtype} weights"
        return what, f"storage=StorageOptions(master_weights=True): {change}"
    return what, "raise lr, or look for what makes the gradients zero"


def _overflow(record: Record, skipped: list[CycleEvent]) -> tuple[str, str]:
    return "s·y or y·y is not finite", "clip the gradients (torch.nn.utils.clip_grad_norm_), or lower lr"


def _flat(record: Record, skipped: list[CycleEvent]) -> tuple[str, str]:
    what = "y is zero, or so small that its square underflows: the gradients are too small for their dtype"
    if "damping" in record.settings.options and not record.settings.damping:
        return what, "pairs=PairOptions(damping=0.5), which mixes y with H0⁻¹s; or scale the loss up"
    return what, "scale the loss up, or train in a wider dtype"


def _negative(record: Record, skipped: list[CycleEvent]) -> tuple[str, str]:
    options = record.settings.options
    what = f"the curvature along s is negative, {number(middle([c.curvature for c in skipped]) or 0.0)} in the median"
    if "delta" in options:
        return (
            f"{what}, after subtracting delta",
            "a smaller delta, or larger batches, whose gradients have less noise",
        )
    if "regularisation" in options:
        return what, "a larger regularisation, which is added to it; or larger batches, whose gradients have less noise"
    if "damping" in options and not record.settings.damping:
        return what, "pairs=PairOptions(damping=0.5), which mixes y with H0⁻¹s until it is positive"
    return what, "larger batches for the curvature; SdLBFGS damps such pairs and stores them"


def _small(record: Record, skipped: list[CycleEvent]) -> tuple[str, str]:
    s = record.settings
    eps = number(s.curvature_eps)
    if s.curvature_test == "absolute":
        found = middle([cycle.curvature for cycle in skipped]) or 0.0
        what = f"curvature below {eps} (s·y/s·s is {number(found)} in the median)"
        if "curvature_test" in s.options:
            return (
                f"{what}, which depends on the scale of the loss",
                'use the scale-free test, pairs=PairOptions(test="scale_free")',
            )
        return what, f"a curvature_eps below {number(found)}"
    if s.curvature_test == "scale_free":
        found = middle([_cosine(cycle) for cycle in skipped]) or 0.0
        more = (
            f", or less noise in y: pairs=PairOptions(fisher_size=...) above {s.fisher_size}" if s.fisher_size else ""
        )
        return (
            f"the cosine between s and y is {number(found)} in the median, and eps asks for {eps}",
            f"pairs=PairOptions(eps=...) below {number(found)}{more}",
        )
    return "your test rejected them", "look at ss, sy and yy of the events that on_cycle gets"


def _cosine(cycle: CycleEvent) -> float:
    assert cycle.ss is not None
    assert cycle.sy is not None
    assert cycle.yy is not None
    return cycle.sy / (math.sqrt(cycle.ss) * math.sqrt(cycle.yy))


EXPLAINED = {STILL: _still, OVERFLOW: _overflow, FLAT: _flat, NEGATIVE: _negative, SMALL: _small}


def nothing_stored(record: Record) -> Finding | None:
    """Is H0 alone at work, or pairs that are old?"""
    since = record.unstored_in_row
    if since < STALE or record.settings.memory_size == 0:
        return None
    left = record.stats.pairs
    at_work = f"the {times(left, 'pair')} in memory are older than that" if left else "only H0 is used"
    return Finding(
        "nothing-stored",
        WARNING,
        f"no pair stored for {times(since, 'cycle')}: {at_work}",
        "see the findings on skipped or rejected cycles; until pairs are stored, an optimizer without pairs does the "
        "same at a lower cost",
    )


def anchor_waits(record: Record) -> Finding | None:
    skips, patience = record.skips_in_row, record.settings.anchor_patience
    if skips < LONG_WAIT:
        return None
    if patience is None:
        return Finding(
            "anchor-stuck",
            WARNING,
            f"the anchor has not moved for {times(skips, 'cycle')}, because every pair was skipped, and it stays until "
            "a pair is stored (anchor_patience=0)",
            "pairs=PairOptions(anchor_patience=20); a rejection now would undo all these cycles",
        )
    return Finding(
        "anchor-waits",
        NOTE,
        f"the anchor has not moved for {times(skips, 'cycle')}, because every pair was skipped; after "
        f"{times(patience - skips, 'more skip')} it moves anyway",
        f"pairs=PairOptions(anchor_patience={LONG_WAIT}) if a rejection, which would undo all these cycles, is likely",
    )


def cycle_at_bound(record: Record) -> Finding | None:
    bounds = record.settings.cycle_bounds
    lengths = [cycle.cycle_length for cycle in record.cycles]
    if bounds is None or len(lengths) < FEWEST_CYCLES:
        return None
    now, (shortest, longest) = record.stats.cycle_length, bounds
    settled = set(lengths[-FEWEST_CYCLES:]) == {now}
    if settled and now == longest > shortest:
        return Finding(
            "cycle-longest",
            HINT,
            f"cycles have grown to their longest, {now} steps: s is mostly noise, or pairs are skipped",
            f"cycle_length=({shortest}, {2 * longest}), or larger batches",
        )
    if settled and now == shortest < longest:
        return Finding(
            "cycle-shortest",
            HINT,
            f"cycles have shrunk to their shortest, {now} steps: s is nearly all signal, or cycles are rejected. Each "
            "of them costs a pair, and a forward pass of the monitor",
            f"cycle_length=({max(1, shortest // 2)}, {longest}) if that is cheap, or a larger bound if it is not",
        )
    path = f", from {min(lengths)} to {max(lengths)} in {span(record)}"
    return Finding("cycle-length", NOTE, f"cycle_length, which adapts, is at {now} steps{path}", "")
