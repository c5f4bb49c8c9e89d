"""Curves on paper: means with their spread over seeds, in every picture that the laboratory makes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaqn.experiments.comparison.dark import RC, with_dark_mode
from adaqn.experiments.comparison.labels import label_ends
from adaqn.experiments.comparison.look import PALETTE, Line, colour, line
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, View
from adaqn.experiments.comparison.summary import over_seeds, spread
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.storage import write_atomically
from adaqn.experiments.training.whole_settings import is_whole

matplotlib.rcParams.update(RC)
matplotlib.rcParams["svg.hashsalt"] = "adaqn"  # the same file from the same numbers
MARKERS = "osD^vP"
STYLES = ("-", "--", "-.")
NAMES = {
    "test_loss": "test loss", "average_memory": "pairs in memory", "test_accuracy": "test accuracy",
    "epoch": "epoch", "seconds": "seconds of training", "step": "step",
    "passes": "gradient evaluations (batches through the model)",
}  # fmt: skip
WHOLE_NAMES = {"test_loss": "loss", "test_error": "error", "epoch": "evaluations"}
"""The same where every batch is the whole one."""
MARGIN = 0.04
"""Of the heights between the lowest and the highest that is shown."""
DIRECT = 1.0
"""Inches more for each panel of a figure whose curves have their names beside them."""
BEGUN = 0.6
"""The share that is shown where the first steps say nothing."""
DECADES_APART = 30.0
"""Losses that fall by more than this factor are drawn on a logarithmic axis, where that is allowed."""


def line_of(runs: Sequence[Finished], label: str, view: View) -> Line:
    """From runs that differ only in their seed."""
    length = min(len(run.metrics) for run in runs)
    start = 1 if view.metric == "average_memory" else 0  # nothing was averaged yet before the first step
    records = [run.metrics[start:length] for run in runs]
    x = over_seeds([[record[view.against] for record in run] for run in records])["mean"]
    values = over_seeds([[record.get(view.metric) for record in run] for run in records])
    return line(label, colour(runs[0].result["config"]["optimizer"]), x, values)


@dataclass(frozen=True)
class Size:
    """Of a figure, in inches; of its panels, how many stand side by side."""

    width: float
    height: float
    """Of each row of panels."""
    columns: int


DESKTOP, PHONE = Size(9.6, 3.7, 2), Size(4.0, 2.7, 1)


def for_phone(stem: Path) -> Path:
    """Where the picture for a phone lies: beside the other, where the site finds it."""
    return stem.with_name(f"{stem.stem}-phone{stem.suffix}")


def panels(size: Size, rows: int, columns: int, *, same_heights: bool = True) -> tuple[Figure, Any]:
    """A figure and its axes by row and column; on a phone the panels of a row stand below each other."""
    if size.columns < columns:
        figure, grid = plt.subplots(
            rows * columns, 1, figsize=(size.width, size.height * rows * columns), squeeze=False, layout="constrained"
        )
        axes = grid.reshape(rows, columns)
        for first, *others in axes if same_heights else ():
            for other in others:
                other.sharey(first)
        return figure, axes
    return plt.subplots(
        rows, columns, figsize=(size.width * columns / size.columns, size.height * rows),
        sharey="row" if same_heights else False, squeeze=False,
        layout="constrained",
    )  # fmt: skip


def draw(
    axes: Axes, lines: Sequence[Line], *, best: Callable[[float], float] | None = None, legend: bool = True
) -> None:
    """Lines with bands, in the order of their last values if ``best`` says which of those come first."""
    if best is not None:
        lines = sorted(lines, key=lambda line: (not math.isfinite(line.mean[-1]), best(line.mean[-1])))
    for drawn in sorted(lines, key=lambda line: not line.minor):  # the others lie above
        width = 0.9 if drawn.minor else 1.8
        axes.plot(
            drawn.x, drawn.mean, drawn.style, color=drawn.colour, linewidth=width, markersize=4, label=drawn.label
        )
        if not drawn.minor:
            axes.fill_between(drawn.x, drawn.low, drawn.high, color=drawn.colour, alpha=0.15, linewidth=0)
    plain(axes, legend=legend)


def frame(
    axes: Axes,
    lines: Sequence[Line],
    *,
    shown: float = 1.0 + MARGIN,
    logarithmic: bool = False,
    with_ends: bool = False,
) -> None:
    """From the lowest value up to the highest start: a run that blew up may leave the picture.

    Args:
        axes: are set.
        lines: what is drawn in them.
        shown: the share of those heights that is shown.
        logarithmic: may the axis be, where losses fall by decades?
        with_ends: show more than that share where a line ends above it.
    """
    starts = [line.mean[0] for line in lines if math.isfinite(line.mean[0])]
    ends = [value for line in lines for value in line.low if math.isfinite(value)]
    if not starts or not ends or not max(starts) > min(ends):
        return
    top, bottom = max(starts), min(ends)
    if logarithmic and 0.0 < bottom < top / DECADES_APART:
        axes.set_yscale("log")
        return
    last = [line.mean[-1] for line in lines if line.mean[-1] <= top] if with_ends else []
    axes.set_ylim(
        bottom - MARGIN * (top - bottom),
        max([bottom + shown * (top - bottom), *(end + MARGIN * (top - bottom) for end in last)]),
    )


def name_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=10)


def plain(axes: Axes, *, legend: bool = True) -> None:
    """A faint grid, no frame, a legend without a box."""
    axes.grid(alpha=0.6, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=8)


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """PNG, and SVG that has a dark mode; written whole."""
    written = []
    for kind in kinds:
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", 'Creating legend with loc="best"')  # only that the machine was busy
            figure.savefig(buffer, format=kind, dpi=160, bbox_inches="tight", metadata=metadata)
        contents = buffer.getvalue()
        path = stem.with_suffix(f".{kind}")
        write_atomically(path, with_dark_mode(contents.decode(), PALETTE).encode() if kind == "svg" else contents)
        written.append(path)
    plt.close(figure)
    return written


def draw_comparison(comparison: Comparison, curves: Sequence[Curve], stem: Path, subtitle: str = "") -> list[Path]:
    """PNG and SVG of all panels, each in all its views."""
    drawn = [(panel, view) for panel in comparison.panels for view in comparison.views]
    columns = min(comparison.columns, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    width = 4.2 + DIRECT if comparison.labels_ends else 4.2
    figure, grid = plt.subplots(
        rows, columns, figsize=(max(6.0, width * columns), 3.6 * rows), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes, (panel, view) in zip(grid.flat, drawn, strict=False):
        shown = [curve for curve in curves if curve.panel.cell == panel.cell]
        if comparison.sweep is not None:
            draw_step_sizes(axes, shown, panel)
        else:
            lines = draw_panel(axes, shown, panel, view, legend=not comparison.labels_ends)
            if comparison.labels_ends and axes is grid[0][0]:
                label_ends(axes, lines)
    figure.suptitle(f"{comparison.title}\n{subtitle}".strip(), x=0.01, ha="left", fontsize=11)
    return save(figure, stem)


def draw_panel(axes: Axes, shown: Sequence[Curve], panel: Panel, view: View, *, legend: bool = True) -> list[Line]:
    """One line per curve, with its last value beside its name and what is missing of it.

    The line is the mean of the finished seeds, or the seed that is furthest; others are thin, as far as they go.
    """
    lines, whole = [], is_whole(panel.base.task)
    for index, curve in enumerate(shown):
        if not curve.runs:
            axes.plot([], [], " ", label=f"{curve.variant.label}: {curve.note}")
            continue
        drawn = line_of(curve.shown, curve.variant.label, view)
        note = f" ({curve.note})" if curve.note else ""
        drawn = replace(drawn, label=f"{drawn.label}  {drawn.mean[-1]:{'.2e' if whole else '.3f'}}{note}")
        if curve.variant.options or len(shown) > len(PALETTE):  # one optimizer in several variants, or very many
            turn, place = divmod(index, len(PALETTE))
            drawn = replace(drawn, colour=PALETTE[place], style=STYLES[turn % len(STYLES)])
        lines.append(drawn)
        for run in curve.runs:
            if run not in curve.shown:
                thin = line_of([run], "_", view)
                lines.append(replace(thin, colour=drawn.colour, style=":", minor=True))
    best = (lambda value: -value) if view.metric == "test_accuracy" else (lambda value: value)
    draw(axes, lines, best=best, legend=legend)
    unit = _unit(shown) if view.metric == "test_loss" else ""
    names = {**NAMES, **WHOLE_NAMES} if whole else NAMES
    name_axes(axes, names[view.against], names[view.metric] + unit, panel.title)
    if view.metric == "test_loss":
        frame(axes, lines, shown=1.0 + MARGIN if legend else BEGUN, logarithmic=whole, with_ends=True)
    elif view.metric == "average_memory":
        axes.set_ylim(bottom=0.0)
    return lines


def draw_step_sizes(axes: Axes, shown: Sequence[Curve], panel: Panel) -> None:
    """The loss at the end against the step size, one line per method; at the average, where all have one."""
    finals = [run.result["final"] for curve in shown for run in curve.runs]
    name = "averaged_valid_loss" if all("averaged_valid_loss" in final for final in finals) else "valid_loss"
    lines = []
    for index, curve in enumerate(shown):
        if not curve.finished:
            axes.plot([], [], " ", label=f"{curve.variant.label}: {curve.note}")
            continue
        ends = {
            lr: spread([run.result["final"][name] for run in runs]) for lr, runs in sorted(curve.by_step_size().items())
        }
        values = {part: [found[part] for found in ends.values()] for part in ("mean", "low", "high")}
        shade, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
        label = f"{curve.variant.label} ({curve.note})" if curve.note else curve.variant.label
        lines.append(line(label, shade, list(ends), values, f"-{marker}"))
    draw(axes, lines)
    axes.set_xscale("log")
    starts = [run.metrics[0]["valid_loss"] for curve in shown for run in curve.runs]
    lowest = [value for line in lines for value in line.low if math.isfinite(value)]
    if starts:
        top, bottom = max(starts), min(lowest, default=0.0)  # a run that blew up may leave the picture
        axes.set_ylim(bottom - MARGIN * (top - bottom), top + MARGIN * (top - bottom))
    name_axes(axes, "step size", f"loss at the end{_unit(shown)}", panel.title)


def _unit(shown: Sequence[Curve]) -> str:
    return next((f" ({curve.runs[0].result['unit']})" for curve in shown if curve.runs), "")
