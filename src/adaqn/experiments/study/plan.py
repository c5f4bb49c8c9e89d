"""The cells of the study, from the file that fixes their steps, and the optimizers that run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.storage import read_json

FILE = Path(__file__).with_name("cells.json")


@dataclass(frozen=True)
class Cell:
    """A task, a model and a number of steps, the same for every method."""

    name: str
    title: str
    core: bool
    base: RunConfig
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All cells, and the budget of every method on each."""

    cells: tuple[Cell, ...]
    seeds: int
    points: int
    """Step sizes tried on seed 0; the best of them is then run with the other seeds."""


def whole_study(path: Path = FILE) -> Plan:
    """What the file says."""
    said = read_json(path)
    try:
        cells = [
            _cell(name, values, kind == "core", said["average"], _methods(said[f"{kind}_methods"]))
            for kind in ("core", "further")
            for name, values in said[kind].items()
        ]
        plan = Plan(tuple(cells), said["seeds"], said["points"])
        if not isinstance(plan.seeds, int) or not isinstance(plan.points, int):
            raise TypeError(f"seeds and points must be whole numbers, got {plan.seeds!r} and {plan.points!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no file of cells ({type(error).__name__}: {error})") from error
    if plan.seeds < 1 or plan.points < 1:
        raise UserError(f"{path}: seeds and points must be at least 1, got {plan.seeds} and {plan.points}")
    return plan


def _methods(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list):
        raise TypeError(f"methods must be a list of names, got {said!r}")
    return tuple(said)


def _cell(name: str, values: dict[str, Any], core: bool, average: float, methods: tuple[str, ...]) -> Cell:
    given = {key: value for key, value in values.items() if key != "title"}
    for method in methods:
        entry(method)
    if average is None:
        raise TypeError("average, the decay of the averaged weights, must be a number")
    return Cell(name, values["title"], core, RunConfig.from_json({**given, "average": average}).complete(), methods)


def chosen(plan: Plan, cells: Sequence[str], methods: Sequence[str]) -> Plan:
    """Only these cells, with only these methods; none given is all, and a method may be one that no cell names."""
    names = [cell.name for cell in plan.cells]
    for name in cells:
        if name not in names:
            raise UserError(f"no cell called {name!r}: give one of {', '.join(names)}")
    for method in methods:
        entry(method)
    kept = [cell for cell in plan.cells if not cells or cell.name in cells]
    if methods:
        asked = tuple(dict.fromkeys(methods))
        kept = [replace(cell, methods=asked if cells else _named(cell, asked)) for cell in kept]
        strangers = [method for method in asked if not any(method in cell.methods for cell in kept)]
        if strangers:
            raise UserError(f"no cell has {strangers[0]} among its methods: say with --cell where it should run")
    return replace(plan, cells=tuple(kept))


def _named(cell: Cell, asked: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(method for method in asked if method in cell.methods)
