"""The results of a figure, small enough to be committed: one file a panel, of which pictures are drawn again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Curve, Panel
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import count, loss, mapping, number, record, several, text
from adaqn.experiments.study.rows import thinned
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import MEASUREMENT, Finished, with_nan
from adaqn.experiments.training.options import command
from adaqn.experiments.training.storage import write_sealed

FORMAT = 1
MOST_POINTS = 120
"""Of a trace."""
TRACES = (
    "step", "epoch", "seconds", "passes", "train_loss", "valid_loss", "test_loss", "test_accuracy", "test_error",
    "averaged_test_loss", "average_memory",
)  # fmt: skip
LEFT_OUT = ("optimizer", "lr", "options", "seed", "threads", "device")

RUN = record(
    {
        **{"config": record({}), "steps": count, "seconds": number(0.0), "unit": text, "share": number(0.0, 1.0)},
        **{"final": MEASUREMENT, "trace": record({"step": several(count, 1)}, rest=several(loss, 1))},
    }
)
CURVE = record({"runs": several(RUN)}, {"label": text, "note": text, "command": text})
PANEL = record({"format": number(FORMAT, FORMAT), "base": record({}), "curves": mapping(CURVE)}, {"command": text})
"""The file of a panel."""
SPREAD = record({"mean": loss, "low": loss, "high": loss})
ROWS = several(
    record(
        {
            **{"panel": text, "curve": text, "lr": number(0.0), "options": record({}), "seeds": count, "steps": count},
            **{"unit": text, "seconds": number(0.0), "test_loss": SPREAD, "valid_loss": SPREAD},
        },
        {
            **{"start": SPREAD, "averaged_valid_loss": SPREAD, "test_error": SPREAD, "noise": SPREAD},
            **{"points": count, "resample": count, "passes": SPREAD, "cycles": record({}), "missing": text},
        },
    ),
    1,
)
"""The table beside a picture."""


def file_of(panel: Panel, folder: Path) -> Path:
    return folder / f"{panel.cell.replace('/', '-')}.json"


def base_of(panel: Panel) -> dict[str, Any]:
    """What all its curves have in common."""
    return {name: value for name, value in panel.base.complete().told().items() if name not in LEFT_OUT}


def keep(panel: Panel, curves: list[Curve], folder: Path, made_by: str, searched: dict[str, Any]) -> None:
    """Write what there is of these curves; what is known of others stays.

    Args:
        panel: the file is its.
        curves: some of its curves, as far as their runs are.
        folder: of the files.
        made_by: the command that makes them again.
        searched: by curve, what its search has found.
    """
    kept = _read(panel, folder)
    for curve in curves:
        before = kept.get(curve.variant.name, {"runs": []})
        if sum(run.share for run in curve.runs) < sum(run["share"] for run in before["runs"]):
            continue  # made on another machine, and further than here
        said: dict[str, Any] = {
            "label": curve.variant.label,
            "note": curve.note,
            "runs": [_run(run) for run in curve.runs],
        }
        if curve.runs:
            first = RunConfig.from_json(curve.runs[0].result["config"])
            said["command"] = command(first, [run.result["config"]["seed"] for run in curve.runs])
        if curve.variant.name in searched:
            said["search"] = {"kind": panel.search, "budget": panel.budget, **searched[curve.variant.name]}
        kept[curve.variant.name] = said
    common = {"format": FORMAT, "panel": panel.title, "command": made_by, "base": base_of(panel)}
    write_sealed(file_of(panel, folder), {**common, "curves": kept})


def kept_curves(panel: Panel, folder: Path) -> list[Curve]:
    """As they were kept; one that was never begun is there without a run."""
    kept = _read(panel, folder)
    return [
        Curve(panel, variant, tuple(_finished(run, file_of(panel, folder)) for run in said["runs"]), said["note"])
        for variant in panel.variants
        for said in (kept.get(variant.name, {"runs": [], "note": "not run"}),)
    ]


def kept_rows(table: Path) -> list[dict[str, Any]]:
    """The table that was written beside a picture: all that there is to a figure without curves over time."""
    rows: list[dict[str, Any]] = read_json(table, ROWS)
    return [
        {
            name: _with_nan(value) if isinstance(value, dict) and "mean" in value else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _with_nan(found: dict[str, float | None]) -> dict[str, float]:
    return {part: math.nan if value is None else value for part, value in found.items()}


def _read(panel: Panel, folder: Path) -> dict[str, Any]:
    """Curve → what is known of it."""
    path = file_of(panel, folder)
    if not is_there(path):
        return {}
    said = read_json(path, PANEL)
    if said["base"] != base_of(panel):
        raise UserError(f"{path} was made with other settings: delete it to keep these, or give another --results")
    curves: dict[str, Any] = said["curves"]
    return curves


def _run(run: Finished) -> dict[str, Any]:
    metrics = thinned(run.metrics, MOST_POINTS)
    names = [name for name in TRACES if any(record.get(name) is not None for record in metrics)]
    return {
        "config": run.result["config"], "steps": run.result["steps"], "seconds": run.result["seconds"],
        "unit": run.result["unit"], "share": run.share, "final": run.result["final"],
        "trace": {name: [_short(record.get(name)) for record in metrics] for name in names},
    }  # fmt: skip


def _finished(said: dict[str, Any], path: Path) -> Finished:
    trace = said["trace"]
    if len({len(values) for values in trace.values()}) != 1:
        raise UserError(f"{path} is damaged: the traces of a run differ in length; it was left in place")
    metrics = [with_nan(dict(zip(trace, values, strict=True))) for values in zip(*trace.values(), strict=True)]
    return Finished(path, with_nan({**said}), metrics, said["share"])


def _short(value: Any) -> Any:
    """Six digits are enough."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
