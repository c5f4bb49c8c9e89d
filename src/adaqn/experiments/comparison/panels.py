"""From a figure's name to its runs: planned, run or reused, summed up."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.specs import PLAIN, FigureSpec, Panel, Variant
from adaqn.experiments.optimizers import entry
from adaqn.experiments.results.groups import command
from adaqn.experiments.search.points import step_sizes
from adaqn.experiments.search.tuning_file import tuned_run
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.options import own_options
from adaqn.experiments.training.parallel import RunListener, run_all


@dataclass(frozen=True)
class Planned:
    """One run of a figure, and the curve that it belongs to."""

    panel: Panel
    variant: Variant
    config: RunConfig


@dataclass(frozen=True)
class Curve:
    """The runs of one curve: they differ in their seed alone, or in seed and step size."""

    panel: Panel
    variant: Variant
    runs: tuple[Finished, ...]


def with_optimizers(spec: FigureSpec, names: list[str]) -> FigureSpec:
    """The same figure for other optimizers."""
    plain = {name: PLAIN.get(name, Variant(name, name, entry(name).label)) for name in names}
    if spec.sweep is not None or spec.name in ("memory", "ablation"):
        raise UserError(f"the curves of {spec.name} are fixed: --optimizers is for lm, lstm, mnist and addition")
    return replace(spec, panels=tuple(replace(p, variants=tuple(plain.values())) for p in spec.panels))


def with_panels(spec: FigureSpec, wanted: list[str]) -> FigureSpec:
    """Only the panels whose title or cell contains one of the words."""
    kept = tuple(p for p in spec.panels if any(w.lower() in f"{p.title} {p.cell}".lower() for w in wanted))
    if not kept:
        titles = "; ".join(panel.title for panel in spec.panels)
        raise UserError(f"no panel of {spec.name} is called {', '.join(wanted)}: it has {titles}")
    return replace(spec, panels=kept)


def with_sizes(spec: FigureSpec, **changes: Any) -> FigureSpec:
    """Every run with these changes, for instance fewer epochs."""
    given = {name: value for name, value in changes.items() if value is not None}
    if "epochs" in given:
        given["steps"] = None
    return replace(spec, panels=tuple(replace(p, base=replace(p.base, **given)) for p in spec.panels))


def plan(spec: FigureSpec, seeds: int, cells: dict[str, Any], path: Path) -> list[Planned]:
    """Every run of the figure, each once."""
    if seeds < 1:
        raise UserError(f"seeds must be at least 1, got {seeds}")
    planned: dict[str, Planned] = {}
    for panel in spec.panels:
        for variant in panel.variants:
            if spec.sweep is not None:
                base = replace(panel.base, optimizer=variant.optimizer, options=dict(variant.options))
                configs = [
                    replace(base, lr=lr) for lr in step_sizes(variant.optimizer, spec.sweep.count, spec.sweep.decades)
                ]
            else:
                configs = [tuned_run(panel, variant, cells, path)]
            for config in configs:
                for seed in range(seeds):
                    run = replace(config, seed=seed).complete()
                    planned.setdefault(run.identity(), Planned(panel, variant, run))
    return list(planned.values())


def run_figure(
    planned: list[Planned], out: Path, workers: int, data_dir: Path | None, listener: RunListener | None
) -> list[Curve]:
    """Run what is not there yet; returns the curves in the order of the plan."""
    done = run_all([p.config for p in planned], out / "runs", workers, data_dir, listener)
    curves: dict[tuple[str, str], list[Finished]] = {}
    owners: dict[tuple[str, str], Planned] = {}
    for p, run in zip(planned, done, strict=True):
        name = (p.panel.cell, p.variant.name)
        curves.setdefault(name, []).append(run)
        owners[name] = p
    return [Curve(owners[name].panel, owners[name].variant, tuple(runs)) for name, runs in curves.items()]


def summary_rows(curves: list[Curve]) -> list[dict[str, Any]]:
    """One row per curve and step size: mean, lowest and highest over the seeds, and how to repeat one run."""
    rows = []
    for curve in curves:
        by_step_size: dict[float, list[Finished]] = {}
        for run in curve.runs:
            by_step_size.setdefault(run.result["config"]["lr"], []).append(run)
        for lr, runs in by_step_size.items():
            finals = [run.result["final"] for run in runs]
            row: dict[str, Any] = {
                "panel": curve.panel.title,
                "curve": curve.variant.label,
                "lr": lr,
                "options": own_options(curve.variant.optimizer, runs[0].result["config"]["options"]),
                "seeds": len(runs),
                "steps": runs[0].result["steps"],
                "unit": runs[0].result["unit"],
                "seconds": round(statistics.fmean(run.result["seconds"] for run in runs), 1),
                "command": command(
                    RunConfig.from_json(runs[0].result["config"]), [run.result["config"]["seed"] for run in runs]
                ),
            }
            for name in ("test_loss", "valid_loss", "test_accuracy", "average_memory"):
                if name in finals[0]:
                    row[name] = spread([final[name] for final in finals])
            if "stored" in finals[0]:
                row["cycles"] = {n: sum(f[n] for f in finals) for n in ("stored", "skipped", "rejected")}
            rows.append(row)
    return rows


def spread(values: list[float]) -> dict[str, float]:
    """Mean, lowest and highest."""
    return {"mean": statistics.fmean(values), "low": min(values), "high": max(values)}
