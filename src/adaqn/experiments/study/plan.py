"""The study as panels: its cells, from the file that fixes their steps, and the optimizers that run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import MOST_SEEDS, Panel, Variant, as_it_comes
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import read_json
from adaqn.experiments.schema import check, mapping
from adaqn.experiments.study.regimes import REGIME, InRegime, Regime, variants
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.whole_settings import is_whole

FILE = Path(__file__).with_name("cells.json")
WHOLE = "whole"
"""The plan of the package for whole batches, by its name."""
METHODS = "_methods"
"""How the entry of a file ends that says who runs on a set of cells."""


@dataclass(frozen=True)
class Plan:
    """A panel for every cell, with the budget of its search, and the number of seeds."""

    panels: tuple[Panel, ...]
    seeds: int
    """The best step size on seed 0 is then run with the others."""
    regimes: tuple[Regime, ...] = ()
    """None for whole batches: each of these methods is run in one way."""
    chosen_on: tuple[str, ...] = ()
    """The cells by which presets are chosen. The others are only looked at when that is done."""
    first: tuple[str, ...] = ()
    """Methods that are run before the others."""
    as_it_comes: tuple[str, ...] = ()
    """Methods whose default step size is run everywhere before any step size is searched."""
    timed: tuple[str, ...] = ()
    """Methods whose steps are timed on every cell, whether they have been run there or not."""
    shorter: tuple[Panel, ...] = ()
    """Runs with a schedule that end earlier than their cell's, for the picture of what is known at any time."""

    @property
    def is_whole(self) -> bool:
        """Is it about whole batches, counted in evaluations?"""
        return all(is_whole(panel.base.task) for panel in (*self.panels, *self.shorter))

    def in_order(self) -> Plan:
        """As it is run: what presets are chosen by comes first, then the first methods elsewhere, then the rest."""
        if not self.first:
            return self
        theirs = [panel for panel in self.panels if panel.name in self.chosen_on]
        others = [panel for panel in self.panels if panel.name not in self.chosen_on]
        parts = [_only(panel, self.first) for panel in [*theirs, *others]]
        parts += self.shorter
        parts += [_without(panel, self.first) for panel in [*theirs, *others]]
        return replace(self, panels=tuple(panel for panel in parts if panel.variants), shorter=())


def _only(panel: Panel, methods: Sequence[str]) -> Panel:
    """In the order of the methods."""
    kept = [v for method in methods for v in panel.variants if v.optimizer == method]
    return replace(panel, variants=tuple(kept))


def _without(panel: Panel, methods: Sequence[str]) -> Panel:
    return replace(panel, variants=tuple(v for v in panel.variants if v.optimizer not in methods))


def plan_file(asked: Path) -> Path:
    """A file, or the name of one that comes with adaqn."""
    return FILE.with_name(f"{WHOLE}.json") if str(asked) == WHOLE and not asked.exists() else asked


def whole_study(path: Path = FILE) -> Plan:
    """What the file says."""
    said = read_json(path)
    try:
        plan = _plan(said, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a file of tasks ({type(error).__name__}: {error})") from error
    return plan


def _plan(said: dict[str, Any], path: Path) -> Plan:
    seeds, points = said["seeds"], said["points"]
    if not isinstance(seeds, int) or not isinstance(points, int):
        raise TypeError(f"seeds and points must be whole numbers, got {seeds!r} and {points!r}")
    if not (1 <= seeds <= MOST_SEEDS and 1 <= points <= MOST_SEEDS):
        raise UserError(f"{path}: seeds and points must be from 1 to {MOST_SEEDS}, got {seeds} and {points}")
    regimes = _regimes(said.get("regimes", {}), path)
    panels = [
        _panel(name, values, _names(said, f"{kind}{METHODS}"), points, regimes)
        for kind in (key.removesuffix(METHODS) for key in said if key.endswith(METHODS))
        for name, values in said[kind].items()
    ]
    if not panels:
        raise ValueError(f"it has no set of tasks with a list of methods called ...{METHODS}")
    chosen_on, first, as_it_comes, timed = (
        _names(said, name, ()) for name in ("chosen_on", "first", "as_it_comes", "timed")
    )
    plan = Plan(tuple(panels), seeds, regimes, chosen_on, first, as_it_comes, timed)
    _known(plan.chosen_on, plan.panels, "chosen_on")
    return replace(plan, shorter=_shorter(said["anytime"], plan)) if "anytime" in said else plan


def _regimes(said: Any, path: Path) -> tuple[Regime, ...]:
    check(said, mapping(REGIME), path)
    return tuple(Regime.from_json(name, values) for name, values in said.items())


def _names(said: dict[str, Any], key: str, usual: tuple[str, ...] | None = None) -> tuple[str, ...]:
    names = said[key] if usual is None else said.get(key, list(usual))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{key} must be a list of names, got {names!r}")
    return tuple(names)


def _panel(
    name: str, values: dict[str, Any], methods: tuple[str, ...], points: int, regimes: tuple[Regime, ...]
) -> Panel:
    base = RunConfig.from_json({key: value for key, value in values.items() if key != "title"}).complete()
    if is_whole(base.task):
        return Panel(values["title"], base, tuple(map(as_it_comes, methods)), "ladder", points, name)
    if not regimes or base.steps is None:
        raise TypeError(f"{name} needs regimes, and a number of steps")
    return Panel(values["title"], base, variants(methods, regimes, base.steps), "ladder", points, name)


def _shorter(said: dict[str, Any], plan: Plan) -> tuple[Panel, ...]:
    """For each of these cells, and each of these shares of its steps, a panel of the regimes with a schedule."""
    cells, methods = _names(said, "cells"), _names(said, "methods")
    _known(cells, plan.panels, "anytime")
    ending = tuple(regime for regime in plan.regimes if regime.schedule != "constant")
    found = []
    for panel in (panel for panel in plan.panels if panel.name in cells):
        assert panel.base.steps is not None
        for share in said["shares"]:
            if not 0.0 < share < 1.0:
                raise ValueError(f"the shares of anytime must lie between 0 and 1, got {share!r}")
            steps = round(share * panel.base.steps)
            made = replace(panel, base=replace(panel.base, steps=steps), variants=variants(methods, ending, steps))
            found.append(replace(made, name=f"{panel.name}-{steps}", title=f"{panel.title}, {steps} steps"))
    return tuple(found)


def _known(cells: Sequence[str], panels: Sequence[Panel], where: str) -> None:
    names = [panel.name for panel in panels]
    for name in cells:
        if name not in names:
            raise ValueError(f"{where} names {name!r}, which is not a task: the tasks are {', '.join(names)}")


def chosen(plan: Plan, cells: Sequence[str], methods: Sequence[str], regimes: Sequence[str] = ()) -> Plan:
    """Only these cells, methods and regimes; none given is all, and a method may be one that no cell names."""
    names = [panel.name for panel in (*plan.panels, *plan.shorter)]
    for name in cells:
        if name not in names:
            raise UserError(f"there is no task {name!r}: give one of {', '.join(names)}")
    kept = [panel for panel in plan.panels if not cells or panel.name in cells]
    shorter = [panel for panel in plan.shorter if not cells or panel.name in cells]
    asked = tuple(dict.fromkeys(methods))
    if asked:
        kept = [_asked(panel, asked, plan.regimes) if cells else _only(panel, asked) for panel in kept]
        shorter = [_only(panel, asked) for panel in shorter]
        here = {variant.optimizer for panel in (*kept, *shorter) for variant in panel.variants}
        for method in asked:
            as_it_comes(method)  # says if there is none of that name
            if method not in here:
                raise UserError(f"no task has {method} among its methods: use --task to say where it should run")
    if regimes:
        _known_regimes(regimes, plan)
        kept, shorter = ([_in_regimes(panel, regimes) for panel in panels] for panels in (kept, shorter))
    return replace(plan, panels=tuple(kept), shorter=tuple(shorter))


def with_timed(plan: Plan) -> list[Panel]:
    """The panels, each with the methods that are timed everywhere."""
    return [_with(panel, plan.timed, plan.regimes) for panel in plan.panels]


def _with(panel: Panel, methods: tuple[str, ...], regimes: tuple[Regime, ...]) -> Panel:
    here = {variant.optimizer for variant in panel.variants}
    more = _asked(panel, tuple(method for method in methods if method not in here), regimes)
    return replace(panel, variants=(*panel.variants, *more.variants))


def _known_regimes(asked: Sequence[str], plan: Plan) -> None:
    names = [regime.name for regime in plan.regimes]
    for name in asked:
        if name not in names:
            known = f"give one of {', '.join(names)}" if names else "this study has none"
            raise UserError(f"there is no regime {name!r}: {known}")


def _in_regimes(panel: Panel, regimes: Sequence[str]) -> Panel:
    return replace(panel, variants=tuple(v for v in panel.variants if isinstance(v, InRegime) and v.regime in regimes))


def _asked(panel: Panel, methods: tuple[str, ...], regimes: tuple[Regime, ...]) -> Panel:
    """Also by methods that the file does not give to this cell."""
    made: tuple[Variant, ...] = tuple(map(as_it_comes, methods))
    if not is_whole(panel.base.task):
        assert panel.base.steps is not None
        made = variants(methods, regimes, panel.base.steps)
    return replace(panel, variants=made)
