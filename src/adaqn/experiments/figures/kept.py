"""The results of a figure, small enough to be committed: one file a panel, of which pictures are drawn again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Curve, Panel
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import LEFT, count, loss, mapping, number, record, several, text
from adaqn.experiments.search.points import Point, choices
from adaqn.experiments.search.tune import Tried
from adaqn.experiments.study.rows import thinned
from adaqn.experiments.training.averages import AVERAGED
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import MEASUREMENT, Finished, folder_name, with_nan
from adaqn.experiments.training.options import command
from adaqn.experiments.training.storage import json_text, write_sealed

FORMAT = 1
MOST_POINTS = 120
"""Of a trace."""
TRACES = (
    "step", "epoch", "seconds", "passes", "train_loss", "valid_loss", "test_loss", "test_accuracy", "test_error",
    *(f"{AVERAGED}{name}" for name in ("valid_loss", "test_loss", "test_accuracy")), "average_memory",
)  # fmt: skip
LEFT_OUT = ("optimizer", "lr", "options", "seed", "threads", "device")

RUN = record(
    {
        **{"config": record({}), "steps": count, "seconds": number(0.0), "unit": text, "share": number(0.0, 1.0)},
        **{"final": MEASUREMENT, "trace": record({"step": several(count, 1)}, rest=several(loss, 1))},
    }
)
TRIAL = record({"lr": number(0.0), "valid_loss": loss}, {"seconds": number(0.0)})
SEARCH = record({"trials": several(TRIAL)}, {"kind": text, "budget": count, "base": record({})})
CURVE = record({"runs": several(RUN)}, {"label": text, "note": text, "command": text, "search": SEARCH})
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
    return folder / f"{panel.file_name}.json"


def base_of(panel: Panel) -> dict[str, Any]:
    """What all its curves have in common."""
    return _common(panel.base)


def searched_of(panel: Panel) -> dict[str, Any]:
    """What all runs of its searches have in common."""
    return _common(panel.searched or panel.base)


def _common(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in config.complete().told().items() if name not in LEFT_OUT}


def keep(panel: Panel, curves: list[Curve], folder: Path, made_by: str, searched: dict[str, Any]) -> list[str]:
    """Write what there is of these curves, if any of it is new; what is known of others stays.

    Runs of a curve that were made elsewhere with the same settings stay too, if they are further than those here. Runs
    with other settings make room for those that are as far: a curve has one step size, or one row of them.

    Returns the labels of the curves whose runs here are not kept, because longer ones with other settings are.

    Args:
        panel: the file is its.
        curves: some of its curves, as far as their runs are.
        folder: of the files.
        made_by: the command that makes them again.
        searched: by curve, what its search has found.
    """
    kept, earlier, file = *_read(panel, folder), file_of(panel, folder)
    known, shorter = _results(kept), []
    as_kept = {_name(run): run for said in kept.values() for run in said["runs"]}  # two curves may share a run
    for curve in curves:
        before = kept.get(curve.variant.name, {"runs": []})
        here = [as_kept[_name(run.result)] if run.folder == file else _run(run) for run in curve.runs]
        if _in_the_way(before["runs"], here):
            shorter.append(curve.variant.label)
            continue
        runs = _furthest(before["runs"], here)
        ours = sum(run["share"] for run in runs) <= sum(run["share"] for run in here)
        said: dict[str, Any] = {
            "label": curve.variant.label,
            "note": curve.note if ours else before.get("note", ""),
            "runs": runs,
        }
        if runs:
            first = RunConfig.from_json(runs[0]["config"])
            said["command"] = command(first, [run["config"]["seed"] for run in runs])
        if found := searched.get(curve.variant.name):
            how = {"kind": panel.search, "budget": panel.budget, "base": searched_of(panel)}
            said["search"] = {**how, **found}
        elif "search" in before:
            said["search"] = before["search"]
        kept[curve.variant.name] = said
    if _results(kept) == known:
        return shorter  # notes and the command stay with the results that they are about
    others = set(kept) - {curve.variant.name for curve in curves}
    told = "; ".join(dict.fromkeys([*(earlier.split("; ") if others and earlier else []), made_by]))
    common = {"format": FORMAT, "panel": panel.title, "command": told, "base": base_of(panel)}
    write_sealed(file, {**common, "curves": kept})
    return shorter


def _results(kept: dict[str, Any]) -> str:
    """All runs and trials, as they are written."""
    found = {name: (said["runs"], said.get("search", {}).get("trials", [])) for name, said in kept.items()}
    return json_text({name: results for name, results in found.items() if any(results)}, sort_keys=True)


def _in_the_way(before: list[dict[str, Any]], here: list[dict[str, Any]]) -> bool:
    """Are there longer runs with other settings?"""
    settings = [_settings(run) for run in here]
    others = [run["share"] for run in before if _settings(run) not in settings]
    return bool(here and others) and max(others) > max(run["share"] for run in here)


def _furthest(before: list[dict[str, Any]], here: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every run, the one that is further; those of before only with the settings of these, if there are any."""
    settings = [_settings(run) for run in here]
    found = {_name(run): run for run in before if not here or _settings(run) in settings}
    for run in here:
        known = found.get(_name(run))
        if known is None or known["share"] <= run["share"]:
            found[_name(run)] = run
    return sorted(found.values(), key=lambda run: (run["config"]["lr"], run["config"]["seed"]))


def _settings(run: dict[str, Any]) -> dict[str, Any]:
    """But for its seed, and where it was made."""
    return {name: value for name, value in run["config"].items() if name not in ("seed", "threads", "device")}


def kept_curves(panel: Panel, folder: Path) -> list[Curve]:
    """As they were kept; one that was never begun is there without a run."""
    kept, _ = _read(panel, folder)
    return [
        Curve(panel, variant, tuple(_finished(run, file_of(panel, folder)) for run in said["runs"]), said["note"])
        for variant in panel.variants
        for said in (kept.get(variant.name, {"runs": [], "note": "not run"}),)
    ]


def kept_runs(panel: Panel, folder: Path) -> dict[str, Finished]:
    """Those that were finished, by :func:`name_of`: they need not be made again."""
    file = file_of(panel, folder)
    runs = [run for said in _read(panel, folder)[0].values() for run in said["runs"] if run["share"] == 1.0]
    return {_name(run): _finished(run, file) for run in runs}


def name_of(config: RunConfig) -> str:
    """The same for two runs that differ only in where they were made."""
    return folder_name(replace(config, threads=1, device="cpu"))


def kept_trials(panel: Panel, folder: Path) -> dict[str, dict[Point, Tried]]:
    """By curve, what its search has tried, and need not try again; also where the runs after it have another length."""
    kept, _ = _contents(panel, folder)
    searched = {variant: kept.get(variant.name, {}).get("search", {}) for variant in panel.variants}
    return {
        variant.name: {point: tried for trial in said["trials"] for point, tried in _tried(trial, variant.optimizer)}
        for variant, said in searched.items()
        if said.get("base") == searched_of(panel)
    }


def _tried(trial: dict[str, Any], optimizer: str) -> list[tuple[Point, Tried]]:
    """None if this version has no such choice, or if it is not known how long it took."""
    told = {name: value for name, value in trial.items() if name not in ("lr", "valid_loss", "seconds")}
    known = choices(optimizer)
    if told not in known or not trial.get("seconds"):
        return []
    loss = math.inf if trial["valid_loss"] is None else trial["valid_loss"]
    return [(Point(trial["lr"], known.index(told)), Tried(loss, trial["seconds"]))]


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


def _read(panel: Panel, folder: Path) -> tuple[dict[str, Any], str]:
    """(Curve → what is known of it, the command that made them.)"""
    curves, said = _contents(panel, folder)
    if said and said["base"] != base_of(panel):
        path = file_of(panel, folder)
        raise UserError(f"{path} was made with other settings: give another --results, or move that file away")
    return curves, said.get("command", "")


def _contents(panel: Panel, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(Curve → what is known of it, all of the file.)"""
    path = file_of(panel, folder)
    said: dict[str, Any] = read_json(path, PANEL) if is_there(path) else {}
    return said.get("curves", {}), said


def _name(run: dict[str, Any]) -> str:
    return name_of(RunConfig.from_json(run["config"]))


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
        raise UserError(f"{path} is damaged: the traces of a run differ in length; {LEFT}")
    metrics = [with_nan(dict(zip(trace, values, strict=True))) for values in zip(*trace.values(), strict=True)]
    return Finished(path, with_nan({**said}), metrics, said["share"])


def _short(value: Any) -> Any:
    """Six digits are enough."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
