"""The figure of an equation: its solution, where the best network errs, and how all rivals got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant, View
from adaqn.experiments.optimizers import entry
from adaqn.experiments.physics.equation import Solution
from adaqn.experiments.physics.equations import EQUATIONS, solution_of
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.training.checkpoint import load_checkpoint, load_model
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, Finished
from adaqn.experiments.training.memory import check_run

RIVALS = "torch-lbfgs,adam-lbfgs,adam,soap,scipy-lbfgs"
MAPS = 3
"""The solution, the network, the error."""
VIEWS = tuple(View(metric, against) for metric in ("test_loss", "test_error") for against in ("epoch", "seconds"))
NAMES = {**plots.NAMES, **plots.WHOLE_NAMES, "test_error": "relative L2 error"}


def pinn_spec(base: RunConfig, optimizers: Sequence[tuple[str, float | None]]) -> Comparison:
    """One panel: every rival on that equation."""
    variants = tuple(Variant(f"{name}:{lr}", name, entry(name).label, lr=lr) for name, lr in optimizers)
    complete = base.complete()
    title = f"{complete.problem}, {complete.layers} × {complete.hidden}, {complete.points} points, {complete.dtype}"
    return Comparison(f"pinn-{complete.problem}", title, (Panel(title, complete, variants),), VIEWS)


def draw_pinn(spec: Comparison, curves: Sequence[Curve], stem: Path, subtitle: str) -> list[Path]:
    """PNG, SVG and a smaller picture for a phone."""
    return plots.save_both(lambda phone: _drawing(spec, curves, subtitle, phone=phone), stem)


def _drawing(spec: Comparison, curves: Sequence[Curve], subtitle: str, *, phone: bool) -> Figure:
    """Three maps above, loss and error by evaluations and by seconds below; on a phone each below the other."""
    base = spec.panels[0].base
    assert base.problem is not None
    size = (plots.PHONE.width, plots.PHONE.height * (MAPS + len(VIEWS))) if phone else (15.0, 7.6)
    figure = plt.figure(figsize=size, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[MAPS, len(VIEWS)] if phone else [1.0, 1.15])
    above, below = parts
    best = min((run for curve in curves for run in curve.runs), key=lambda run: _finite(run.result["final"]))
    _draw_maps(above, base.problem, best, phone=phone)
    grid = below.subplots(len(VIEWS) if phone else 1, 1 if phone else len(VIEWS))
    for axes, view in zip(grid, VIEWS, strict=True):
        _draw_view(axes, curves, view)
    plots.entitle(figure, spec.title, subtitle, phone=phone)
    return figure


def _finite(final: dict[str, Any]) -> float:
    error: float = final["test_error"]
    return error if np.isfinite(error) else float("inf")


def _draw_maps(figure: Any, problem: str, best: Finished, *, phone: bool) -> None:
    solution, found = solution_of(problem), found_solution(best)
    exact = solution.values.numpy()
    label = entry(best.result["config"]["optimizer"]).label
    left, middle, right = figure.subplots(MAPS if phone else 1, 1 if phone else MAPS)
    largest = float(np.abs(exact).max())
    for axes, values, title in ((left, exact, "solution"), (middle, found, f"network of {label}")):
        _map(axes, solution, values, title, problem, cmap="RdBu_r", vmin=-largest, vmax=largest)
    error = f"{best.result['final']['test_error']:.1e}"
    _map(right, solution, np.abs(found - exact), f"its absolute error; relative {error}", problem, vmin=0.0)


def _map(axes: Axes, solution: Solution, values: Any, title: str, problem: str, **options: Any) -> None:
    evolves = EQUATIONS[problem].axes[1] == "t"
    across, up = (solution.y, solution.x) if evolves else (solution.x, solution.y)  # time runs to the right
    shown = values.T if evolves else values
    mesh = axes.pcolormesh(across.numpy(), up.numpy(), shown, shading="auto", rasterized=True, **options)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(mesh, ax=axes)
    plots.name_axes(axes, "t" if evolves else "x", "x" if evolves else "y", title)


def found_solution(run: Finished) -> Any:
    """What the network of a finished run says on the grid of the solution."""
    config = replace(RunConfig.from_json(run.result["config"]), device="cpu", threads=1).complete()
    assert config.problem is not None
    check_run(config)
    task = make_task(config)
    model = task.model()
    load_model(model, load_checkpoint(run.folder / CHECKPOINT), run.folder / CHECKPOINT)
    solution = solution_of(config.problem)
    with torch.no_grad():
        found = model.network(task.on_device(solution.points()))  # type: ignore[operator]
    return found.double().cpu().view(solution.values.shape).numpy()


def _draw_view(axes: Axes, curves: Sequence[Curve], view: View) -> None:
    lines = []
    for curve in curves:
        line = plots.line_of(curve.runs, curve.variant, view)
        style = look.style(curve.variant.optimizer)
        lines.append(
            look.Line(f"{line.label}  {line.mean[-1]:.1e}", line.colour, line.x, line.mean, line.low, line.high, style)
        )
    plots.draw(axes, lines, best=lambda value: value)
    axes.set_yscale("log")
    plots.name_axes(axes, NAMES[view.against], NAMES[view.metric])
    legend = axes.get_legend()
    if legend is not None and view.against == "seconds":
        legend.remove()
