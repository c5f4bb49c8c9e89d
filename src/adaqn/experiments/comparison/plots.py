"""Curves on paper: means with their spread over seeds, in every picture that the laboratory makes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, View
from adaqn.experiments.comparison.summary import over_seeds
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.storage import write_atomically
from adaqn.experiments.training.whole_settings import is_whole

# Okabe and Ito's palette: told apart by colour-blind readers too. A name has the same colour in every figure.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
_FIXED = {
    **{"adaqn": 0, "adaqn-kronecker": 0, "adaqn-modern": 6, "adaqn-paper": 5},
    **{"adaqn-lbfgs": 0, "adaqn-bfgs": 0, "adaqn-ssbfgs": 0, "adaqn-ssbroyden": 0},
    **{"torch-lbfgs": 6, "adam-lbfgs": 4, "scipy-lbfgs": 7, "scipy-bfgs": 7, "torchmin-lbfgs": 5, "torchmin-bfgs": 5},
    **{"hf": 3, "kfac": 5},
    **{"adagrad": 4, "adam": 1, "soap": 2, "muon": 3, "shampoo": 5, "rmsprop": 6, "nag": 7},
}
_DASHES = {"adaqn-bfgs": ":", "adaqn-ssbfgs": "-.", "adaqn-ssbroyden": "--", "scipy-bfgs": "--", "torchmin-bfgs": "--"}
"""Of methods that share a colour with another in the figures of whole batches."""
MARKERS = "osD^vP"
NAMES = {
    "test_loss": "test loss", "average_memory": "pairs in memory", "test_accuracy": "test accuracy",
    "epoch": "epoch", "seconds": "seconds of training",
}  # fmt: skip
WHOLE_NAMES = {"test_loss": "loss", "test_error": "error", "epoch": "evaluations"}
"""The same where every batch is the whole one."""
MARGIN = 0.04
"""Of the heights between the lowest and the highest that is shown."""
DECADES_APART = 30.0
"""Losses that fall by more than this factor are drawn on a logarithmic axis, where that is allowed."""


@dataclass(frozen=True)
class Line:
    """The mean over seeds, and the lowest and highest of them."""

    label: str
    colour: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: str = "-"


def line(label: str, shade: str, x: Sequence[float], values: dict[str, list[float]], style: str = "-") -> Line:
    """From what :func:`adaqn.experiments.comparison.summary.over_seeds` says."""
    return Line(label, shade, x, values["mean"], values["low"], values["high"], style)


def colour(optimizer: str) -> str:
    return PALETTE[_FIXED.get(optimizer, sum(optimizer.encode()) % len(PALETTE))]


def style(optimizer: str) -> str:
    return _DASHES.get(optimizer, "-")


def line_of(runs: Sequence[Finished], label: str, view: View) -> Line:
    """From runs that differ only in their seed."""
    length = min(len(run.metrics) for run in runs)
    start = 1 if view.metric == "average_memory" else 0  # nothing was averaged yet before the first step
    records = [run.metrics[start:length] for run in runs]
    x = over_seeds([[record[view.against] for record in run] for run in records])["mean"]
    values = over_seeds([[record.get(view.metric) for record in run] for run in records])
    return line(label, colour(runs[0].result["config"]["optimizer"]), x, values)


def draw(axes: Axes, lines: Sequence[Line], *, best: Callable[[float], float] | None = None) -> None:
    """Lines with bands, in the order of their last values if ``best`` says which of those come first."""
    if best is not None:
        lines = sorted(lines, key=lambda line: (not math.isfinite(line.mean[-1]), best(line.mean[-1])))
    for line in lines:
        axes.plot(line.x, line.mean, line.style, color=line.colour, linewidth=1.8, markersize=4, label=line.label)
        axes.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.15, linewidth=0)
    plain(axes)


def frame(axes: Axes, lines: Sequence[Line], *, shown: float = 1.0 + MARGIN, logarithmic: bool = False) -> None:
    """From the lowest value up to the highest start: a run that blew up may leave the picture.

    Args:
        axes: are set.
        lines: what is drawn in them.
        shown: the share of those heights that is shown.
        logarithmic: may the axis be, where losses fall by decades?
    """
    starts = [line.mean[0] for line in lines if math.isfinite(line.mean[0])]
    ends = [value for line in lines for value in line.low if math.isfinite(value)]
    if not starts or not ends or not max(starts) > min(ends):
        return
    top, bottom = max(starts), min(ends)
    if logarithmic and 0.0 < bottom < top / DECADES_APART:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom - MARGIN * (top - bottom), bottom + shown * (top - bottom))


def name_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=10)


def plain(axes: Axes) -> None:
    """A faint grid, no frame, a legend without a box."""
    axes.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def save(figure: Figure, stem: Path) -> list[Path]:
    """PNG and SVG, written whole."""
    written = []
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", 'Creating legend with loc="best"')  # only that the machine was busy
            figure.savefig(buffer, format=kind, dpi=160, bbox_inches="tight")
        path = stem.with_suffix(f".{kind}")
        write_atomically(path, buffer.getvalue())
        written.append(path)
    plt.close(figure)
    return written


def draw_comparison(comparison: Comparison, curves: Sequence[Curve], stem: Path, subtitle: str = "") -> list[Path]:
    """PNG and SVG of all panels, each in all its views."""
    drawn = [(panel, view) for panel in comparison.panels for view in comparison.views]
    columns = min(comparison.columns, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(max(6.0, 4.2 * columns), 3.6 * rows), squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes, (panel, view) in zip(grid.flat, drawn, strict=False):
        shown = [curve for curve in curves if curve.panel.cell == panel.cell]
        if comparison.sweep is not None:
            draw_step_sizes(axes, shown, panel)
        else:
            draw_panel(axes, shown, panel, view)
    figure.suptitle(f"{comparison.title}\n{subtitle}".strip(), x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    return save(figure, stem)


def draw_panel(axes: Axes, shown: Sequence[Curve], panel: Panel, view: View) -> None:
    """One line per curve, with its last value beside its name."""
    lines, whole = [], is_whole(panel.base.task)
    for index, curve in enumerate(shown):
        drawn = line_of(curve.runs, curve.variant.label, view)
        drawn = replace(drawn, label=f"{drawn.label}  {drawn.mean[-1]:{'.2e' if whole else '.3f'}}")
        if curve.variant.options:  # one optimizer in several variants
            drawn = replace(drawn, colour=PALETTE[index % len(PALETTE)])
        lines.append(drawn)
    draw(axes, lines, best=(lambda value: -value) if view.metric == "test_accuracy" else (lambda value: value))
    unit = f" ({shown[0].runs[0].result['unit']})" if view.metric == "test_loss" else ""
    names = {**NAMES, **WHOLE_NAMES} if whole else NAMES
    name_axes(axes, names[view.against], names[view.metric] + unit, panel.title)
    if view.metric == "test_loss":
        frame(axes, lines, logarithmic=whole)
    elif view.metric == "average_memory":
        axes.set_ylim(bottom=0.0)


def draw_step_sizes(axes: Axes, shown: Sequence[Curve], panel: Panel) -> None:
    """The loss at the end against the step size, one line per method."""
    lines = []
    for index, curve in enumerate(shown):
        by_step_size = sorted(curve.by_step_size().items())
        ends = zip(*([run.result["final"]["valid_loss"] for run in runs] for _, runs in by_step_size), strict=True)
        shade, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
        x = [lr for lr, _ in by_step_size]
        lines.append(line(curve.variant.label, shade, x, over_seeds(list(ends)), f"-{marker}"))
    draw(axes, lines)
    axes.set_xscale("log")
    starts = [run.metrics[0]["valid_loss"] for curve in shown for run in curve.runs]
    lowest = [value for line in lines for value in line.low if math.isfinite(value)]
    top, bottom = max(starts), min(lowest, default=0.0)  # a run that blew up may leave the picture
    axes.set_ylim(bottom - MARGIN * (top - bottom), top + MARGIN * (top - bottom))
    name_axes(axes, "step size", f"loss at the end ({shown[0].runs[0].result['unit']})", panel.title)
