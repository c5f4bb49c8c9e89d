"""One HTML page about all runs below a folder: it needs no server, no network and no other file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Any

import adaqn
from adaqn.experiments.comparison.headline import headline
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.reading import read_lines
from adaqn.experiments.results.groups import Group, contender, describe
from adaqn.experiments.results.maps import maps
from adaqn.experiments.schema import check, record, text
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, MEASUREMENT, METRICS, RESULT, Finished, finished, stored_config
from adaqn.experiments.training.storage import json_text, write_atomically
from adaqn.experiments.training.whole_settings import is_whole


def write_report(root: Path, out: Path | None = None) -> Path:
    """Write the page, by default to ``root/report.html``; returns its path."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # slow to import

    def file(name: str) -> str:
        return resources.files("adaqn.experiments.results").joinpath(name).read_text(encoding="utf-8")

    inside = {"data": as_script_data(report_data(root)), "plotly": get_plotlyjs()}
    pieces = file("report.html").split("@@@")  # text and, between two marks, what goes there
    text = [inside.get(piece) or file(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    path = out or root / "report.html"
    write_atomically(path, "".join(text).encode())
    return path


def as_script_data(value: Any) -> str:
    r"""JSON that can stand inside a script element, whatever it says; NaN and infinities become null.

    >>> as_script_data({"a": "</script>&", "b": [1.5, float("nan")]})
    '{"a": "\\u003c/script\\u003e\\u0026", "b": [1.5, null]}'
    """
    text = json_text(value)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def report_data(root: Path) -> dict[str, Any]:
    """All that the page shows."""
    runs, unfinished = collect(root)
    unique = {(run.result["identity"], run.result["data_sha256"]): run for run in reversed(runs)}
    panels: dict[tuple[str, ...], list[Group]] = {}
    for group in group_by_seed(list(reversed(unique.values()))):
        config = group.config
        key = (config.task, subject(config), config.model, group.runs[0].result["unit"])
        panels.setdefault(key, []).append(group)
    return {
        "root": str(root),
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "version": adaqn.__version__,
        "runs": len(unique),
        "copies": len(runs) - len(unique),
        "panels": [
            dict(zip(("task", "data", "model", "unit"), key, strict=True))
            | {"whole": is_whole(key[0]), "maps": maps(groups), "groups": describe(groups)}
            | {"headline": headline([contender(group) for group in groups])}
            for key, groups in sorted(panels.items())
        ],
        "unfinished": unfinished,
    }


def subject(config: RunConfig) -> str:
    """What a panel is about: its data, or the problem that is generated."""
    known = [config.problem, None if config.problem and config.data == "embedded" else config.data]
    return ", ".join(name for name in known if name)


def collect(root: Path) -> tuple[list[Finished], list[dict[str, str]]]:
    """The finished runs below a folder, and what is to be said about the others: one bad run is no reason to stop."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}")
    done: list[Finished] = []
    others: list[dict[str, str]] = []
    folders, unreadable = _folders(root)
    for folder in folders:
        try:
            run = finished(folder)
            if run is not None:
                _check_shown(run)
                done.append(run)
                continue
            state = _how_far(folder)
        except UserError as error:
            state = f"left out: {error}"
        others.append({"folder": str(folder.relative_to(root)), "state": state})
    others += [{"folder": str(path.relative_to(root)), "state": f"left out: {why}"} for path, why in unreadable]
    if not done and not others:
        raise UserError(f"there are no runs below {root}: a run is a folder with {CONFIG} and {METRICS} in it")
    return done, others


def _folders(root: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Those with a run in them, and those that cannot be looked into."""
    found: list[Path] = []
    unreadable: list[tuple[Path, str]] = []
    waiting = [root]
    while waiting:  # os.walk calls itself, until Python 3.12, and gives up a thousand folders deep
        folder = waiting.pop()
        try:
            with os.scandir(folder) as inside:
                entries = {entry.name: entry.is_dir(follow_symlinks=False) for entry in inside}
        except OSError as error:
            unreadable.append((folder, f"cannot be read: {error.strerror}"))
            continue
        if {CONFIG, METRICS} <= entries.keys() or {CONFIG, RESULT} <= entries.keys():
            found.append(folder)
        waiting += [folder / name for name, is_folder in entries.items() if is_folder]
    return sorted(found), sorted(unreadable)


def _check_shown(run: Finished) -> None:
    """Can this version say what the run was? A newer one may have tasks, models and optimizers that it does not know.

    Made on its own, the run's part of the page shows whatever is wrong with it while it can still be left out.
    """
    config, path = run.result["config"], run.folder / RESULT
    check(run.result, record({"identity": text}), path)
    read = RunConfig.from_json(config, path)
    entry(read.optimizer)
    replace(read, device="cpu", threads=1).complete()
    describe([Group(read, [run])])


def _how_far(folder: Path) -> str:
    stored_config(folder)
    records = read_lines(folder / METRICS, MEASUREMENT)
    if not records:
        return "not finished: nothing measured yet"
    return f"not finished: measured up to step {records[-1]['step']}, epoch {records[-1]['epoch']:.2f}"


def group_by_seed(runs: Sequence[Finished]) -> list[Group]:
    """Together if all but the seed is equal, the data's checksum too."""
    groups: dict[tuple[str, str], Group] = {}
    for run in runs:
        config = replace(RunConfig.from_json(run.result["config"]), seed=0)
        key = (config.identity(), run.result["data_sha256"])
        groups.setdefault(key, Group(config, [])).runs.append(run)
    for group in groups.values():
        group.runs.sort(key=lambda run: int(run.result["config"]["seed"]))
    return list(groups.values())
