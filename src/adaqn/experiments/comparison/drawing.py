"""A figure's curves on paper: means with their spread over seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from adaqn.experiments.comparison import plots
from adaqn.experiments.comparison.panels import Curve, spread
from adaqn.experiments.figures.specs import FigureSpec, Panel

MARKERS = "osD^vP"
NAMES = {"test_loss": "test loss", "average_memory": "pairs in memory", "test_accuracy": "test accuracy"}


def draw_figure(spec: FigureSpec, curves: list[Curve], stem: Path, scale: str, seeds: int) -> list[Path]:
    """PNG and SVG of the whole figure."""
    metrics = [spec.metric] * len(spec.panels)
    if spec.name == "mnist":
        metrics = ["test_loss", "test_accuracy"]
    columns = min(spec.columns, len(spec.panels))
    rows = math.ceil(len(spec.panels) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(max(6.0, 4.2 * columns), 3.6 * rows), squeeze=False)
    for axes in grid.flat[len(spec.panels) :]:
        axes.set_visible(False)
    for axes, panel, metric in zip(grid.flat, spec.panels, metrics, strict=False):
        shown = [curve for curve in curves if curve.panel.cell == panel.cell]
        if spec.sweep is not None:
            draw_step_sizes(axes, shown, panel)
        else:
            draw_panel(axes, shown, panel, metric)
    over = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(f"{spec.title}\n{scale} scale, {over}", x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    return plots.save(figure, stem)


def draw_panel(axes: Axes, shown: list[Curve], panel: Panel, metric: str) -> None:
    """One curve per method against the epoch."""
    lines = []
    for index, curve in enumerate(shown):
        runs = list(curve.runs)
        if metric == "average_memory":  # nothing was averaged yet before the first step
            runs = [type(run)(run.folder, run.result, run.metrics[1:]) for run in runs]
        line = plots.curve(runs, curve.variant.label, metric)
        if curve.variant.options:  # one optimizer in several variants
            line = type(line)(**{**line.__dict__, "colour": plots.PALETTE[index % len(plots.PALETTE)]})
        lines.append(line)
    unit = shown[0].runs[0].result["unit"] if metric == "test_loss" else ""
    name = f"{NAMES[metric]} ({unit})" if unit else NAMES[metric]
    better_high = metric == "test_accuracy"
    plots.draw(axes, lines, xlabel="epoch", ylabel=name, title=panel.title, highest_first=better_high)
    if metric == "test_loss":
        clip_to_interesting(axes, lines)
    elif metric == "average_memory":
        axes.set_ylim(bottom=0.0)


def clip_to_interesting(axes: Axes, lines: list[plots.Curve]) -> None:
    """A run that blew up may leave the picture; the others stay readable."""
    finals = [float(line.mean[-1]) for line in lines if math.isfinite(line.mean[-1])]
    starts = [float(line.mean[0]) for line in lines if math.isfinite(line.mean[0])]
    lowest = [float(np.nanmin(line.low)) for line in lines if np.isfinite(line.low).any()]
    if finals and starts and lowest:
        top = max(starts)
        axes.set_ylim(min(lowest) - 0.04 * (top - min(lowest)), top + 0.04 * (top - min(lowest)))


def draw_step_sizes(axes: Axes, shown: list[Curve], panel: Panel) -> None:
    """The loss at the end against the step size, one line per method."""
    starts, ends = [], []
    for index, curve in enumerate(shown):
        by_step_size: dict[float, list[float]] = {}
        for run in curve.runs:
            starts.append(run.metrics[0]["valid_loss"])
            by_step_size.setdefault(run.result["config"]["lr"], []).append(run.result["final"]["valid_loss"])
        points: list[tuple[float, dict[str, float]]] = [(lr, spread(v)) for lr, v in sorted(by_step_size.items())]
        x = [lr for lr, _ in points]
        shade = plots.PALETTE[index % len(plots.PALETTE)]
        style: dict[str, Any] = {"color": shade, "marker": MARKERS[index % len(MARKERS)], "markersize": 4}
        axes.plot(x, [value["mean"] for _, value in points], label=curve.variant.label, linewidth=1.6, **style)
        ends += [value["low"] for _, value in points if math.isfinite(value["low"])]
        low, high = [value["low"] for _, value in points], [value["high"] for _, value in points]
        axes.fill_between(x, low, high, color=shade, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    top, bottom = max(starts), min(ends, default=0.0)  # a run that blew up may leave the picture
    axes.set_ylim(bottom - 0.04 * (top - bottom), top + 0.04 * (top - bottom))
    axes.set_xlabel("step size")
    axes.set_ylabel(f"loss at the end ({shown[0].runs[0].result['unit']})")
    axes.set_title(panel.title, loc="left", fontsize=10)
    plots.plain(axes)
