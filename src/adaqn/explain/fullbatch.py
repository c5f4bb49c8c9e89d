"""What an optimizer for whole gradients says about itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaqn.core.outcome import Outcome
from adaqn.explain.explanation import Explanation
from adaqn.explain.finding import HINT, NOTE, WARNING, Finding, number, percent, times
from adaqn.fullbatch.events import Iteration, WholeStats

if TYPE_CHECKING:
    from adaqn.fullbatch.method import WholeMethod

MANY_TRIALS = 3.0
"""Evaluations per iteration from which on searches cost more than they should; 1 to 1.5 is usual."""
MANY_SKIPS = 0.5


def explain_whole(stats: WholeStats, recent: Sequence[Iteration], name: str, method: WholeMethod) -> Explanation:
    """All findings about those totals and the last iterations."""
    checks = (
        _no_step(stats),
        _idle(stats),
        _tolerance(stats),
        _not_finite(stats),
        _restarts(stats),
        _trials(recent),
        _skips(recent),
        _noise(stats, method),
    )
    return Explanation(tuple(_summary(stats, recent, name, method)), tuple(found for found in checks if found))


def _summary(stats: WholeStats, recent: Sequence[Iteration], name: str, method: WholeMethod) -> list[str]:
    lines = [
        f"{name} on {type(method.scaling).__name__}: {times(stats.iterations, 'iteration')}, "
        f"{times(stats.evaluations, 'evaluation')}; {stats.stored:,} pairs stored, {stats.skipped:,} skipped, "
        f"{stats.pairs} in memory",
        f"the last step ended because {stats.reason}",
    ]
    if recent:
        first, last = recent[0], recent[-1]
        lines.append(
            f"loss in the last {times(len(recent), 'iteration')}: from {number(first.previous_loss)} to "
            f"{number(last.loss)}; largest gradient {number(last.gradient)}"
        )
    return lines


def _no_step(stats: WholeStats) -> Finding | None:
    if stats.evaluations == 0 or ("no lower loss" not in stats.reason and "no direction" not in stats.reason):
        return None
    return Finding(
        "stopped",
        NOTE,
        f"the last step ended because {stats.reason}",
        "this is as far as the precision of the loss goes: use float64, or stop here. If the loss is still large, the "
        "closure may not return the loss whose gradient it makes, or may be another function at every call",
    )


def _tolerance(stats: WholeStats) -> Finding | None:
    name = "tolerance_grad" if "tolerance_grad" in stats.reason else "tolerance_change"
    if name not in stats.reason:
        return None
    return Finding(
        "tolerance",
        NOTE,
        f"the last step ended by {name}, which is absolute: it does not know how small the loss is",
        f"if the loss should fall further, give {name}=0",
    )


def _idle(stats: WholeStats) -> Finding | None:
    if not stats.idle:
        return None
    return Finding(
        "idle",
        WARNING,
        f"the last {times(stats.idle, 'step')} spent all evaluations and found no lower loss",
        "give a larger max_eval. If that does not help: does the closure clear the gradients (opt.zero_grad()) before "
        "backward(), and return the loss whose gradient it makes?",
    )


def _not_finite(stats: WholeStats) -> Finding | None:
    if not stats.nonfinite:
        return None
    return Finding(
        "not finite",
        HINT,
        f"{times(stats.nonfinite, 'evaluation')} gave a loss or a gradient that was not finite; each shortened a step",
        "a few do no harm. If there are many, give a smaller lr: it is the first length that a search tries",
    )


def _restarts(stats: WholeStats) -> Finding | None:
    if stats.restarts * 20 <= stats.iterations:
        return None
    return Finding(
        "restarts",
        WARNING,
        f"{stats.restarts} searches failed in {times(stats.iterations, 'iteration')}, after which pairs were dropped",
        "the loss may be noisy (a new sample at every call: say opt.resampled(), or take a seed), or near the "
        "precision of its dtype: use float64 or line_search_fn='hager_zhang'",
    )


def _trials(recent: Sequence[Iteration]) -> Finding | None:
    if len(recent) < 8:
        return None
    per_iteration = sum(event.trials for event in recent) / len(recent)
    if per_iteration < MANY_TRIALS:
        return None
    return Finding(
        "trials",
        HINT,
        f"a search took {number(per_iteration)} evaluations on average over the last {len(recent)} iterations",
        "1 to 1.5 is usual: is the loss smooth? Kinks (ReLU, absolute values) and noise make searches long",
    )


def _skips(recent: Sequence[Iteration]) -> Finding | None:
    skipped = sum(event.outcome is Outcome.SKIPPED for event in recent)
    if len(recent) < 8 or skipped < MANY_SKIPS * len(recent):
        return None
    return Finding(
        "skips",
        WARNING,
        f"{percent(skipped / len(recent))} of the last pairs told of no positive curvature and were skipped",
        "without a line search, give one; with noisy losses, give damping=0.2",
    )


def _noise(stats: WholeStats, method: WholeMethod) -> Finding | None:
    if method.noise is not None or stats.noise == 0.0 or stats.loss is None:
        return None
    return Finding(
        "noise",
        NOTE,
        f"losses of the same weights differ by {number(stats.noise)}: searches take no smaller difference seriously",
        "if the loss has no noise but was changed between steps, call opt.reset_history() there"
        if stats.noise < 0.01 * abs(stats.loss)
        else "with so much noise AdaQN or SOAP may be the better choice: see docs/whole_gradients.md",
    )
