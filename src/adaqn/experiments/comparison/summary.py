"""Curves summed up over their seeds: mean, lowest and highest, as rows of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adaqn.experiments.comparison.panels import Curve
from adaqn.experiments.means import mean
from adaqn.experiments.training.averages import AVERAGED
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.options import command, own_options

VERDICTS = ("stored", "skipped", "rejected")


def over_seeds(
    rows: Sequence[Sequence[float | None]], middle: Callable[[Sequence[float]], float] = mean
) -> dict[str, list[float]]:
    """Mean, lowest and highest of every column; one seed that is not finite makes all three NaN.

    Another ``middle``, such as the median, takes the place of the mean.

    >>> over_seeds([[1.0, 2.0], [3.0, None]])
    {'mean': [2.0, nan], 'low': [1.0, nan], 'high': [3.0, nan]}
    """
    found: dict[str, list[float]] = {"mean": [], "low": [], "high": []}
    for column in zip(*rows, strict=True):
        known = [float(value) for value in column if value is not None and math.isfinite(value)]
        for name, function in (("mean", middle), ("low", min), ("high", max)):
            found[name].append(function(known) if len(known) == len(column) else math.nan)
    return found


def spread(values: Sequence[float | None]) -> dict[str, float]:
    """The same of one column."""
    return {name: found[0] for name, found in over_seeds([[value] for value in values]).items()}


def verdicts(finals: Sequence[dict[str, Any]]) -> dict[str, int] | None:
    """How many cycles ended how, over all seeds; ``None`` for methods without cycles."""
    if not all(name in final for final in finals for name in VERDICTS):
        return None
    return {name: sum(final[name] for final in finals) for name in VERDICTS}


def cycles_text(finals: Sequence[dict[str, Any]]) -> str:
    """How the cycles of all seeds ended; of pairs only where there are some.

    >>> cycles_text([{"cycles": 40, "stored": 0, "skipped": 0, "rejected": 3}])
    '40, 3 rejected'
    >>> cycles_text([{"cycles": 40, "stored": 30, "skipped": 6, "rejected": 3}])
    '40, 3 rejected, 30 stored, 6 skipped'
    """
    found = verdicts(finals)
    if found is None:
        return "–"
    pairs = [f"{found[name]} {name}" for name in ("stored", "skipped") if found["stored"] + found["skipped"]]
    return ", ".join([str(sum(final["cycles"] for final in finals)), f"{found['rejected']} rejected", *pairs])


def first_reached(trace: list[tuple[float, float]], goal: float) -> float | None:
    """Where the curve first comes down to the goal: the step or second, on a straight line between two evaluations.

    >>> first_reached([(0, 4.0), (100, 2.0), (200, 1.0)], 1.5)
    150.0
    >>> first_reached([(0, 4.0), (100, 2.0)], 1.5) is None
    True
    """
    before: tuple[float, float] | None = None
    for step, loss in trace:
        if loss <= goal:
            if before is None or before[1] == float("inf"):
                return float(step)
            share = (before[1] - goal) / (before[1] - loss)
            return before[0] + share * (step - before[0])
        before = (step, loss)
    return None


def stopped_early(run: Finished, prefix: str = "") -> float | None:
    """The test loss where the validation loss was lowest; ``None`` if nothing was validated."""
    *_, last = (None, *so_far(run.metrics, prefix))
    return None if last is None else _number(last, f"{prefix}test_loss")


def so_far(metrics: Sequence[Mapping[str, Any]], prefix: str = "") -> list[Mapping[str, Any] | None]:
    """At every evaluation, the one until then at which the validation loss was lowest.

    >>> [record and record["step"] for record in so_far([{"step": 0}, {"step": 1, "valid_loss": 2.0}])]
    [None, 1]
    """
    found: list[Mapping[str, Any] | None] = []
    best: Mapping[str, Any] | None = None
    for record in metrics:
        loss = _number(record, f"{prefix}valid_loss")
        if math.isfinite(loss) and (best is None or loss < _number(best, f"{prefix}valid_loss")):
            best = record
        found.append(best)
    return found


def _number(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    return math.nan if value is None else float(value)


def summary_rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row per curve and step size, and how to repeat its runs."""
    return [_row(curve, lr, runs) for curve in curves for lr, runs in curve.by_step_size().items()]


def _row(curve: Curve, lr: float, runs: list[Finished]) -> dict[str, Any]:
    finals, first = [run.result["final"] for run in runs], runs[0].result
    row: dict[str, Any] = {
        "panel": curve.panel.title,
        "curve": curve.variant.label,
        "lr": lr,
        "options": own_options(curve.variant.optimizer, first["config"]["options"]),
        "seeds": len(runs),
        "steps": first["steps"],
        "unit": first["unit"],
        "seconds": round(statistics.fmean(run.result["seconds"] for run in runs), 1),
        "command": command(RunConfig.from_json(first["config"]), [run.result["config"]["seed"] for run in runs]),
    }
    if curve.note:
        row["missing"] = curve.note
    if curve.variant.at_average:
        row["judged_at"] = "average"
    averages = [f"{AVERAGED}{name}" for name in ("test_loss", "valid_loss", "test_accuracy")]
    for name in ("test_loss", "valid_loss", *averages, "test_error", "test_accuracy", "average_memory", "passes"):
        if name in finals[0]:
            row[name] = spread([final[name] for final in finals])
    stopped = [stopped_early(run, curve.variant.prefix) for run in runs]
    if all(loss is not None for loss in stopped):
        row["stopped_test_loss"] = spread(stopped)
    cycles = verdicts(finals)
    return row if cycles is None else {**row, "cycles": cycles}
