"""Before anything can be judged; numbers that are not finite; and what the history takes."""

from __future__ import annotations

import math

from adaqn.core.outcome import Outcome
from adaqn.explain.finding import HINT, NOTE, WARNING, Finding, asked_size, percent, schedule, size, span, times
from adaqn.explain.record import Record

OFTEN = 0.02
"""A GradScaler that looks for its scale causes about one in a thousand."""
LARGE = 1_000_000_000
"""Bytes of history from which on less may be wanted."""
SMALLER_FISHER = 10
HARDLY = 1e-15
"""A step size below which shorter steps would not help."""


def no_step(record: Record) -> Finding | None:
    if record.stats.steps or record.stats.nonfinite:
        return None
    return Finding(
        "no-step",
        HINT,
        "no step has been made: step() was not called yet, or no parameter had a gradient",
        "call loss.backward() before opt.step(), and give the optimizer the parameters of the model that is trained",
    )


def no_cycle(record: Record) -> Finding | None:
    if not record.stats.steps or record.stats.cycles:
        return None
    length = record.stats.cycle_length
    return Finding(
        "no-cycle",
        NOTE,
        f"{times(record.stats.steps, 'step')}, and no cycle has ended: the first verdict comes after {length}",
        "",
    )


def no_step_size(record: Record) -> Finding | None:
    if any(record.settings.lr) or not record.stats.steps:
        return None
    if _has_moved(record):
        return Finding("lr-zero", NOTE, "lr is 0 now: its schedule has ended, and the weights no longer move", "")
    return Finding(
        "lr-zero",
        WARNING,
        "lr is 0: the weights do not move",
        "give an lr above 0, or look at the scheduler that set it",
    )


def _has_moved(record: Record) -> bool:
    """Were there steps of some length? Pairs tell, and monitored losses; where there is neither, the full step size."""
    compared = [c for c in record.cycles if c.anchor_loss is not None and c.candidate_loss is not None]
    if any(cycle.ss for cycle in record.cycles) or any(c.anchor_loss != c.candidate_loss for c in compared):
        return True
    return not compared and record.stats.cycles > 0 and any(record.settings.full_lr)


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
        f"{lost:,} of {times(record.stats.steps + lost, 'gradient')} held inf or nan, or overflowed when squared, "
        f"and were skipped ({percent(share)}){since}",
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
        f"{times(lost, 'time')} the weights, or all gradients at them, were not finite, and the weights were reset to "
        "the last good ones",
        f"lower lr, now {asked_size(record, record.stats.step_multiplier)}{schedule(record)}, or clip the gradients "
        "(torch.nn.utils.clip_grad_norm_)"
        if max(record.settings.asked_lr) * record.stats.step_multiplier > HARDLY
        else "look for what makes the loss or its gradient inf or nan: the steps are as short as they get",
    )


def large_history(record: Record) -> Finding | None:
    s = record.settings
    if s.size.total < LARGE:
        return None
    less = []
    if s.size_in_bfloat16.total < s.size.total:
        both = ", fisher_dtype=torch.bfloat16" if s.fisher_size else ""
        storage = f"storage=StorageOptions(history_dtype=torch.bfloat16{both})"
        less.append(f"bf16 would take {size(s.size_in_bfloat16.total)} ({storage})")
    if s.fisher_size > SMALLER_FISHER:
        saved = (s.fisher_size - SMALLER_FISHER) * s.row
        less.append(f"pairs=PairOptions(fisher_size={SMALLER_FISHER}) would take {size(s.size.total - saved)}")
    if s.fisher_size:
        less.append(f"pairs=PairOptions(curvature=EmpiricalFisher(...)) {size(s.size.total - s.size.gradients)}")
    elif s.memory_size > 1:
        less.append(f"memory_size={s.memory_size // 2} about {size(s.size.total - s.size.pairs // 2)}")
    return Finding("large-history", HINT, f"the history takes {parts(record)}", "; ".join(less))


def parts(record: Record) -> str:
    """The bytes and what they are for."""
    found = record.settings.size
    named = (("pairs", found.pairs), ("gradients", found.gradients), ("H0", found.h0), ("others", found.others))
    return f"{size(found.total)} (" + ", ".join(f"{name} {size(count)}" for name, count in named if count) + ")"
