"""The tuning file: which step size each curve of a figure runs with, and the search that found it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel, Variant
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.work import Known
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import loss, mapping, number, record
from adaqn.experiments.search.points import IN_TIME
from adaqn.experiments.search.tune import CurveSearch
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.storage import write_json

CURVE = record({"best": record({"lr": number(0.0)}, {"valid_loss": loss})})
TUNING = record({"cells": mapping(record({}, {"base": record({}), "curves": mapping(CURVE)}))})
"""cell → curve → what was found."""


def packaged(scale: str) -> Path:
    """The file that comes with the package."""
    return Path(__file__).with_name(f"{scale}.json")


def read_tuning(path: Path) -> dict[str, Any]:
    """cell → curve → what was found; nothing where there is no file yet."""
    if not is_there(path):
        return {}
    cells: dict[str, Any] = read_json(path, TUNING)["cells"]
    return cells


def write_tuning(path: Path, panel: Panel, found: dict[str, CurveSearch], command: str) -> None:
    """What a search has found, into the file."""
    contents = read_json(path, TUNING) if is_there(path) else {"cells": {}}
    cell = contents["cells"].setdefault(key(panel), {"base": base_json(panel), "curves": {}})
    if cell["base"] != base_json(panel):
        cell.update(base=base_json(panel), curves={})  # other sizes: what was found for those is of no use
    cell["command"] = command
    for curve, search in found.items():
        cell["curves"][curve] = {"search": panel.search, "budget": panel.budget, **search.results()}
    write_json(path, contents)


def key(panel: Panel) -> str:
    """One entry per panel and kind of search."""
    return f"{panel.cell}/{panel.search}"


def base_json(panel: Panel) -> dict[str, Any]:
    """What the search was run on, without what it varied."""
    left_out = ("optimizer", "lr", "options", "seed", "threads", "device", "average")
    searched = (panel.searched or panel.base).complete()
    return {name: value for name, value in searched.told().items() if name not in left_out}


def tuned_by(path: Path, *, strict: bool = True, any_size: bool = True) -> Known:
    """The runs with the step sizes of that file.

    Args:
        path: of the file.
        strict: is what it has not an error? Otherwise it is to be searched.
        any_size: do step sizes count that were found by other searches, or on shorter runs?
    """
    cells = read_tuning(path)

    def tuned(panel: Panel, variant: Variant) -> RunConfig | None:
        if panel.search == IN_TIME:  # which is that of this machine
            return None
        searched = {
            name: cell
            for name, cell in cells.items()
            if (name.rpartition("/")[0] == panel.cell if any_size else _is_of(panel, name, cell))
        }
        known = {name: cell["curves"] for name, cell in searched.items() if variant.name in cell.get("curves", {})}
        if not known and strict:
            raise UserError(
                f"{path} has no step size for {variant.name} on {panel.cell}: run the figure with --tune first"
            )
        if not known:
            return None
        best = dict(known.get(key(panel), next(iter(known.values())))[variant.name]["best"])
        lr = best.pop("lr")
        best.pop("valid_loss", None)
        return replace(variant.on(panel.base), lr=lr, options={**best, **dict(variant.options)})

    return tuned


def _is_of(panel: Panel, name: str, cell: dict[str, Any]) -> bool:
    """Is that entry of its search, on runs of its size?"""
    return name == key(panel) and cell.get("base") == base_json(panel)
