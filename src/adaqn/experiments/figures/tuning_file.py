"""The tuning file: which step size each curve of a figure runs with, and the search that found it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel, Tuned, Variant
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import loss, mapping, number, record
from adaqn.experiments.search.tune import Told, tune
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


def search_panel(
    panel: Panel, path: Path, command: str, out: Path, workers: int, data_dir: Path | None, told: Told | None = None
) -> None:
    """Tune every curve of a panel with the same budget on seed 0, and write what was found into the file."""
    curves = {variant.name: variant.on(panel.base) for variant in panel.variants}
    done = tune(
        curves,
        panel.budget,
        out,
        search=panel.search,
        name=study_name(panel),
        workers=workers,
        data_dir=data_dir,
        told=told,
    )
    contents = read_json(path, TUNING) if is_there(path) else {"cells": {}}
    cell = contents["cells"].setdefault(key(panel), {"base": base_json(panel), "curves": {}})
    if cell["base"] != base_json(panel):
        cell.update(base=base_json(panel), curves={})  # other sizes: what was found for those is of no use
    cell["command"] = command
    for curve, found in done.items():
        cell["curves"][curve] = {"search": panel.search, "budget": panel.budget, **found}
    write_json(path, contents)


def study_name(panel: Panel) -> str:
    """Another one for other sizes."""
    text = json.dumps(base_json(panel), sort_keys=True)
    return f"{key(panel)}/{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def key(panel: Panel) -> str:
    """One entry per panel and kind of search."""
    return f"{panel.cell}/{panel.search}"


def base_json(panel: Panel) -> dict[str, Any]:
    """What the search was run on, without what it varied."""
    left_out = ("optimizer", "lr", "options", "seed", "threads", "device", "average")
    return {name: value for name, value in panel.base.complete().told().items() if name not in left_out}


def tuned_by(path: Path) -> Tuned:
    """The runs with the step sizes of that file."""
    cells = read_tuning(path)
    return lambda panel, variant: tuned_run(panel, variant, cells, path)


def tuned_run(panel: Panel, variant: Variant, cells: dict[str, Any], path: Path) -> RunConfig:
    """The run of a curve with its tuned step size."""
    curves = cells.get(key(panel), {}).get("curves", {})
    if variant.name not in curves:
        raise UserError(f"{path} has no step size for {variant.name} on {panel.cell}: run the figure with --tune first")
    best = dict(curves[variant.name]["best"])
    lr = best.pop("lr")
    best.pop("valid_loss", None)
    return replace(variant.on(panel.base), lr=lr, options={**best, **dict(variant.options)})
