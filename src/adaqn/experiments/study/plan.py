"""The study as panels: its cells, from the file that fixes their steps, and the optimizers that run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import MOST_SEEDS, Panel, Variant, as_it_comes
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import read_json
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.whole_settings import is_whole

FILE = Path(__file__).with_name("cells.json")
WHOLE = "whole"
"""The plan of the package for whole batches, by its name."""


@dataclass(frozen=True)
class Plan:
    """A panel for every cell, with the budget of its search, and the number of seeds."""

    panels: tuple[Panel, ...]
    seeds: int
    """The best step size on seed 0 is then run with the others."""

    @property
    def is_whole(self) -> bool:
        """Is it about whole batches, counted in evaluations?"""
        return all(is_whole(panel.base.task) for panel in self.panels)


def plan_file(asked: Path) -> Path:
    """A file, or the name of one that comes with adaqn."""
    return FILE.with_name(f"{WHOLE}.json") if str(asked) == WHOLE and not asked.exists() else asked


def whole_study(path: Path = FILE) -> Plan:
    """What the file says."""
    said = read_json(path)
    try:
        seeds, points = said["seeds"], said["points"]
        if not isinstance(seeds, int) or not isinstance(points, int):
            raise TypeError(f"seeds and points must be whole numbers, got {seeds!r} and {points!r}")
        panels = [
            _panel(name, values, said.get("average"), _methods(said[f"{kind}_methods"]), points)
            for kind, cells in said.items()
            if isinstance(cells, dict)
            for name, values in cells.items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no file of cells ({type(error).__name__}: {error})") from error
    if not (1 <= seeds <= MOST_SEEDS and 1 <= points <= MOST_SEEDS):
        raise UserError(f"{path}: seeds and points must be from 1 to {MOST_SEEDS}, got {seeds} and {points}")
    return Plan(tuple(panels), seeds)


def _methods(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list):
        raise TypeError(f"methods must be a list of names, got {said!r}")
    return tuple(said)


def _panel(name: str, values: dict[str, Any], average: float | None, methods: tuple[str, ...], points: int) -> Panel:
    given = {key: value for key, value in values.items() if key != "title"}
    if average is None and not is_whole(values["task"]):
        raise TypeError("average, the decay of the averaged weights, must be a number")
    base = RunConfig.from_json({**given, "average": average}).complete()
    variants = tuple(as_it_comes(method) for method in methods)
    return Panel(values["title"], base, variants, search="ladder", budget=points, name=name)


def chosen(plan: Plan, cells: Sequence[str], methods: Sequence[str]) -> Plan:
    """Only these cells, with only these methods; none given is all, and a method may be one that no cell names."""
    names = [panel.name for panel in plan.panels]
    for name in cells:
        if name not in names:
            raise UserError(f"no cell called {name!r}: give one of {', '.join(names)}")
    kept = [panel for panel in plan.panels if not cells or panel.name in cells]
    asked = tuple(as_it_comes(method) for method in dict.fromkeys(methods))
    if asked:
        kept = [replace(panel, variants=asked if cells else _named(panel, asked)) for panel in kept]
        strangers = [variant for variant in asked if not any(variant in panel.variants for panel in kept)]
        if strangers:
            raise UserError(f"no cell has {strangers[0].name} among its methods: say with --cell where it should run")
    return replace(plan, panels=tuple(kept))


def _named(panel: Panel, asked: tuple[Variant, ...]) -> tuple[Variant, ...]:
    return tuple(variant for variant in asked if variant in panel.variants)
