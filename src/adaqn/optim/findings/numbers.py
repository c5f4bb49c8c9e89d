"""Gradients and weights that are no numbers."""

from __future__ import annotations

import math

from adaqn.core.outcome import Outcome
from adaqn.optim.findings.finding import NOTE, WARNING, Finding, percent, span, step_size, times
from adaqn.optim.record import Record

OFTEN = 0.02
"""A GradScaler that looks for its scale causes about one in a thousand."""


def nonfinite_gradients(record: Record) -> Finding | None:
    lost = record.stats.nonfinite
    if not lost:
        return None
    share = lost / (record.stats.steps + lost)
    since = ""
    if record.cycles and record.cycles[0].cycle > 1:  # otherwise all of them are recent
        lately = lost - record.cycles[0].nonfinite
        since = f", {lately:,} of them in {span(record)}"
    return Finding(
        "nonfinite-gradients",
        WARNING if share >= OFTEN else NOTE,
        f"{lost:,} of {times(record.stats.steps + lost, 'gradient')} held inf or nan, or numbers whose square does, "
        f"and made no step ({percent(share)}){since}",
        "with float16 a GradScaler and scaler.step(opt), or a smaller loss scale; otherwise look for a division or "
        "logarithm of 0 with torch.autograd.set_detect_anomaly(True)",
    )


def diverged(record: Record) -> Finding | None:
    """Rejected without a look at the loss: the weights were not finite, or gave no gradient any more (D13)."""
    lost = sum(
        c.outcome is Outcome.REJECTED and (c.candidate_loss is None or not math.isfinite(c.yy or 0.0))
        for c in record.cycles
    )
    if not lost:
        return None
    return Finding(
        "diverged",
        WARNING,
        f"{times(lost, 'time')} the weights, or every gradient at them, were not finite, and they went back to the "
        "last good ones",
        f"lower lr, now {step_size(record, record.stats.step_multiplier)}, or clip the gradients "
        "(torch.nn.utils.clip_grad_norm_)",
    )
