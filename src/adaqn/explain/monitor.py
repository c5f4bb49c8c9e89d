"""Whether there is a monitor, and whether it can judge."""

from __future__ import annotations

import math

from adaqn.core.outcome import Outcome
from adaqn.explain.finding import HINT, WARNING, Finding, number, percent, times
from adaqn.explain.record import Record

FEW_EXAMPLES = 30
"""Below so many the standard error of the paired test is itself a guess."""
SURE = 3
"""Equal losses in a row that are no accident."""


def no_monitor(record: Record) -> Finding | None:
    s = record.settings
    if s.monitored or s.acceptance is None:
        return None
    return Finding(
        "no-monitor",
        WARNING,
        "no monitor was given, so no cycle is rejected by its loss: steps that are too large are noticed only when the "
        "weights are no longer finite",
        "opt.monitor = Monitor(model, loss_fn, batch) with a hundred training examples; or reject='none' if that "
        "is intended",
    )


def unused_monitor(record: Record) -> Finding | None:
    s = record.settings
    if not s.monitored or s.acceptance is not None:
        return None
    return Finding(
        "unused-monitor",
        HINT,
        "a monitor was given, but reject='none' never uses it",
        "reject='paired', or leave out the monitor",
    )


def scalar_monitor(record: Record) -> Finding | None:
    s = record.settings
    if s.paired_level is None or not _examples(record) or max(_examples(record)) >= 2:
        return None
    allowed = "" if s.reject_factor is None else f" (rejected if it grew by more than {percent(s.reject_factor - 1.0)})"
    return Finding(
        "scalar-monitor",
        HINT,
        f"the monitor returns one number, so the factor test decides{allowed} instead of the paired one, which "
        "estimates the noise",
        "a loss_fn for Monitor that returns one loss per example, such as reduction='none'",
    )


def few_examples(record: Record) -> Finding | None:
    s = record.settings
    if s.paired_level is None or any(cycle.by_first_look for cycle in record.cycles):  # there are more
        return None
    count = max(_examples(record), default=0)
    if not 2 <= count < FEW_EXAMPLES:
        return None
    return Finding(
        "few-examples",
        HINT,
        f"cycles are judged by {count} examples: the standard error of so few is itself a guess",
        "a monitoring set of a hundred examples or more",
    )


def _examples(record: Record) -> list[int]:
    return [cycle.examples for cycle in record.cycles if cycle.examples is not None]


def blind_monitor(record: Record) -> Finding | None:
    """A loss that does not change although the weights do."""
    moved = [c for c in record.cycles if c.ss or (c.outcome is Outcome.KEPT and any(record.settings.lr))]
    pairs = [(c.candidate_loss, c.anchor_loss) for c in moved if c.anchor_loss is not None]
    if len(pairs) < SURE or any(new != old for new, old in pairs):
        return None
    return Finding(
        "blind-monitor",
        WARNING,
        f"the monitored loss did not change in {times(len(pairs), 'cycle')}, though the weights moved: it is "
        f"{number(pairs[-1][0] or 0.0)} at both points each time",
        "give the monitor the model whose parameters the optimizer trains; a copy of it does not change",
    )


def monitor_not_finite(record: Record) -> Finding | None:
    lost = [c for c in record.cycles if c.candidate_loss is not None and not math.isfinite(c.candidate_loss)]
    if not lost:
        return None
    return Finding(
        "monitor-not-finite",
        WARNING,
        f"the monitored loss was {lost[-1].candidate_loss} at {times(len(lost), 'average')} of a cycle, and "
        "those cycles were rejected",
        "lower lr; if the monitor evaluates in float16, Monitor(..., autocast=torch.bfloat16)",
    )


def sets_that_cannot_judge(record: Record) -> Finding | None:
    lost = sum(c.anchor_loss is not None and not math.isfinite(c.anchor_loss) for c in record.cycles)
    if not lost:
        return None
    return Finding(
        "set-cannot-judge",
        WARNING,
        f"on {times(lost, 'monitoring set')} the loss of the last good weights was not finite: such a set rejects "
        "nothing",
        "leave out the batches on which the loss is inf or nan",
    )
