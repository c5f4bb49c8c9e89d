"""Before anything can be judged."""

from __future__ import annotations

from adaqn.optim.findings.finding import HINT, NOTE, WARNING, Finding, times
from adaqn.optim.record import Record


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
    if any(cycle.ss for cycle in record.cycles):
        return Finding("lr-zero", NOTE, "lr is 0 now: its schedule has come to an end, and the weights stay", "")
    return Finding(
        "lr-zero",
        WARNING,
        "lr is 0: the weights do not move",
        "give an lr above 0, or look at the scheduler that set it",
    )
