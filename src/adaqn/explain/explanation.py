"""In plain words: what happened in the last cycles, and what to change."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from adaqn.core.outcome import Outcome
from adaqn.explain import basics, monitor, pairs, verdicts
from adaqn.explain.finding import NOTE, Check, Finding, asked_size, number, span, step_size, times
from adaqn.explain.record import Record

CHECKS: tuple[Check, ...] = (
    basics.no_step,
    basics.no_cycle,
    basics.no_step_size,
    basics.diverged,
    basics.nonfinite_gradients,
    monitor.blind_monitor,
    monitor.monitor_not_finite,
    monitor.sets_that_cannot_judge,
    verdicts.many_rejected,
    verdicts.steps_shrunk,
    verdicts.accepted_rise,
    pairs.pairs_skipped,
    pairs.nothing_stored,
    pairs.anchor_waits,
    monitor.no_monitor,
    monitor.unused_monitor,
    monitor.scalar_monitor,
    monitor.few_examples,
    verdicts.slow,
    pairs.cycle_at_bound,
    basics.large_history,
)
"""All that is looked for, in the order in which it is said."""


@dataclass(frozen=True)
class Explanation:
    """What happened, and what to change; ``str()`` of it is for people, ``findings`` for programs.

    >>> import torch
    >>> from adaqn import AdaQN
    >>> opt = AdaQN([torch.nn.Parameter(torch.ones(3))], reject="none")
    >>> [finding.name for finding in opt.explain().findings]
    ['no-step']
    """

    summary: tuple[str, ...]
    """How far it is, sentence by sentence."""
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Is there nothing to change?"""
        return all(finding.severity == NOTE for finding in self.findings)

    def __str__(self) -> str:
        end = () if any(finding.change for finding in self.findings) else ("nothing to change",)
        return "\n".join((*self.summary, *map(str, self.findings), *end))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "summary": list(self.summary),
            "findings": [asdict(finding) for finding in self.findings],
            "is_well": self.is_well,
        }


def explain(record: Record) -> Explanation:
    """All findings about that record."""
    found = (check(record) for check in CHECKS)
    return Explanation(tuple(_summary(record)), tuple(finding for finding in found if finding is not None))


def _verdicts(record: Record) -> str:
    stats, most = record.stats, record.settings.memory_size
    if most == 0:
        return f"{stats.rejected:,} rejected; no pairs are kept"
    return (
        f"{stats.stored:,} stored, {stats.skipped:,} skipped and {stats.rejected:,} rejected; {stats.pairs} of {most} "
        "pairs in memory"
    )


def _summary(record: Record) -> list[str]:
    s, stats = record.settings, record.stats
    scheduled = f" now, {asked_size(record)} before its schedule" if s.is_scheduled_down else ""
    lines = [
        f"{s.method}, lr={step_size(record)}{scheduled}: {times(stats.steps, 'step')}, "
        f"{times(stats.cycles, 'cycle')} with {_verdicts(record)}",
        f"history: {basics.parts(record)}",
    ]
    if record.cycles and len(record.cycles) < stats.cycles:
        of_each = ", ".join(f"{record.count(outcome)} {outcome.value}" for outcome in Outcome if record.count(outcome))
        lines.insert(1, f"{span(record)}: {of_each}")
    if record.forgotten:
        lines.insert(
            1, f"{times(len(record.cycles), 'cycle')} known in detail: the others came before a state was loaded"
        )
    if stats.by_first_look:
        lines.append(f"{times(stats.by_first_look, 'cycle')} judged by the first look at the monitored examples")
    losses = [
        c.candidate_loss for c in record.cycles if c.candidate_loss is not None and math.isfinite(c.candidate_loss)
    ]
    if len(losses) > 1 and not s.rotating:
        lines.append(f"monitored loss in {span(record)}: from {number(losses[0])} to {number(losses[-1])}")
    return lines
