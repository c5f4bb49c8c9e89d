"""What an optimizer for whole gradients says about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from adaqn.core.outcome import Outcome
from adaqn.explain.explanation import Explanation
from adaqn.explain.finding import HINT, NOTE, WARNING, Finding, number, percent, times
from adaqn.explain.record import as_text, from_text, mapped
from adaqn.explain.typed import checked
from adaqn.fullbatch.events import Iteration, WholeStats
from adaqn.fullbatch.minimization import BUDGET

if TYPE_CHECKING:
    from adaqn.fullbatch.optimizer import WholeGradient

MANY_TRIALS = 3.0
"""Evaluations per iteration from which on searches cost more than they should; 1 to 1.5 is usual."""
MANY_SKIPS = 0.5
SMALL_NOISE = 0.01
"""A share of the loss."""
OTHER_FUNCTION = "a different function in every call (dropout, random points: use eval mode, or a closure with a seed)"


@dataclass(frozen=True)
class WholeRecord:
    """All that an explanation is made of; plain values, so that a run can keep it."""

    method: str
    scaling: str
    search: str | None
    max_iter: int
    max_eval: int
    dtype: str
    damping: float | None
    """``None`` where there is no such option."""
    watches_noise: bool
    """Is it told by the optimizer itself?"""
    stats: WholeStats
    recent: tuple[Iteration, ...]
    """The last iterations."""

    def to_json(self) -> dict[str, Any]:
        plain = {**asdict(self), "recent": [{**asdict(e), "outcome": e.outcome.value} for e in self.recent]}
        written: dict[str, Any] = mapped(plain, as_text)
        return written

    @staticmethod
    def from_json(read: Any) -> WholeRecord:
        """ValueError for what no version has written."""
        try:
            values = mapped(read, from_text)
            events = ({**event, "outcome": Outcome(event["outcome"])} for event in values["recent"])
            recent = tuple(Iteration(**event) for event in events)
            return checked(WholeRecord(**{**values, "stats": WholeStats(**values["stats"]), "recent": recent}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not the record of an optimizer ({type(error).__name__}: {error})") from error


def whole_record_of(optimizer: WholeGradient) -> WholeRecord:
    """Everything at this moment."""
    method, group = optimizer._method, optimizer.param_groups[0]
    repair = method.made_of.get("repair")
    widths = [p.dtype.to_real() for p in optimizer._parameters() if p.requires_grad]
    return WholeRecord(
        type(optimizer).__name__,
        type(method.scaling).__name__,
        group["line_search_fn"],
        group["max_iter"],
        group["max_eval"],
        str(min(widths, key=lambda dtype: dtype.itemsize, default="")).removeprefix("torch."),
        (0.0 if repair is None else float(repair.share)) if "repair" in method.made_of else None,
        method.noise is None,
        optimizer.stats,
        tuple(optimizer._recent),
    )


def explain_whole(record: WholeRecord) -> Explanation:
    """All findings about those totals and the last iterations."""
    found = (check(record) for check in CHECKS)
    return Explanation(tuple(_summary(record)), tuple(finding for finding in found if finding))


def _summary(record: WholeRecord) -> list[str]:
    stats, recent = record.stats, record.recent
    lines = [
        f"{record.method} on {record.scaling}: {times(stats.iterations, 'iteration')}, "
        f"{times(stats.evaluations, 'evaluation')}; {times(stats.stored, 'pair')} stored, {stats.skipped:,} skipped, "
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


def _no_step(record: WholeRecord) -> Finding | None:
    stats = record.stats
    if stats.evaluations == 0 or ("no lower loss" not in stats.reason and "no direction" not in stats.reason):
        return None
    finer = "" if record.dtype == "float64" else "use float64, or "
    return Finding(
        "stopped",
        NOTE,
        f"the last step ended because {stats.reason}",
        f"this is as far as the precision of the loss goes: {finer}stop here. If the loss is still large, the closure "
        f"may not return the loss whose gradient it computes, or may be {OTHER_FUNCTION}",
    )


def _tolerance(record: WholeRecord) -> Finding | None:
    reason = record.stats.reason
    name = "tolerance_grad" if "tolerance_grad" in reason else "tolerance_change"
    if name not in reason:
        return None
    return Finding(
        "tolerance",
        NOTE,
        f"the last step ended by {name}, which is absolute, however small the loss is",
        f"if the loss should fall further, set {name}=0",
    )


def _no_room(record: WholeRecord) -> Finding | None:
    if record.max_eval > 1 or record.search is None or record.stats.steps == 0:
        return None
    usual = max(record.max_iter * 5 // 4, record.max_iter + 5)
    return Finding(
        "no room",
        WARNING,
        "no step is possible: max_eval=1 covers only the evaluation at its start, and a search needs more",
        f"set max_eval to at least 2; for max_iter={record.max_iter} it is {usual} by default",
    )


def _idle(record: WholeRecord) -> Finding | None:
    if not record.stats.idle or record.stats.reason != BUDGET:
        return None
    return Finding(
        "idle",
        WARNING,
        f"the last {times(record.stats.idle, 'step')} spent all evaluations and found no lower loss",
        "set a larger max_eval. If that does not help: does the closure clear the gradients (opt.zero_grad()) before "
        "backward(), and return the loss whose gradient it computes?",
    )


def _not_finite(record: WholeRecord) -> Finding | None:
    count = record.stats.nonfinite
    if not count:
        return None
    return Finding(
        "not finite",
        HINT,
        f"{times(count, 'evaluation')} gave a loss or a gradient that was not finite; "
        f"{'it' if count == 1 else 'each'} shortened a step",
        "a few do no harm. If there are many, set a smaller lr: it is the first length that a search tries",
    )


def _restarts(record: WholeRecord) -> Finding | None:
    stats = record.stats
    if stats.restarts * 20 <= stats.iterations:
        return None
    finer = [
        *(["float64"] if record.dtype != "float64" else []),
        *(["line_search_fn='hager_zhang'"] if record.search not in ("hager_zhang", "HagerZhang") else []),
    ]
    return Finding(
        "restarts",
        WARNING,
        f"{times(stats.restarts, 'search')} failed in {times(stats.iterations, 'iteration')}, after which pairs were "
        "dropped",
        f"the loss may be {OTHER_FUNCTION}, have new data that the optimizer does not know of (call "
        f"opt.resampled()), or be near the precision of its dtype{': use ' if finer else ''}{' or '.join(finer)}",
    )


def _trials(record: WholeRecord) -> Finding | None:
    recent = record.recent
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


def _skips(record: WholeRecord) -> Finding | None:
    recent = record.recent
    skipped = sum(event.outcome is Outcome.SKIPPED for event in recent)
    if len(recent) < 8 or skipped < MANY_SKIPS * len(recent):
        return None
    advice = [
        *(["use a line search"] if record.search is None else []),
        *(["use line_search_fn='hager_zhang', which checks slopes"] if record.search == "backtracking" else []),
        *(["with noisy losses, set damping=0.2"] if record.damping == 0.0 else []),
    ]
    return Finding(
        "skips",
        WARNING,
        f"{percent(skipped / len(recent))} of the last pairs had no positive curvature and were skipped",
        "; ".join(advice) or "is the gradient that of the loss, and is the loss smooth?",
    )


def _noise(record: WholeRecord) -> Finding | None:
    stats = record.stats
    if not record.watches_noise or stats.noise == 0.0 or stats.loss is None:
        return None
    changed = "if you changed the loss between steps (continuation, adaptive weights), call opt.reset_history() there"
    if stats.noise >= SMALL_NOISE * abs(stats.loss):
        changed += f", or opt.resampled() if only its data are new. If it is {OTHER_FUNCTION}, fix that. With so much "
        changed += "noise in the data AdaQN or SOAP may be the better choice: see docs/whole_gradients.md"
    return Finding(
        "noise",
        NOTE,
        f"losses at the same weights differ by {number(stats.noise)}: searches ignore smaller differences",
        changed,
    )


CHECKS = (_no_step, _no_room, _idle, _tolerance, _not_finite, _restarts, _trials, _skips, _noise)
"""All that is looked for, in the order in which it is said."""
