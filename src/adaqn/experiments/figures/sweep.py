"""Figures over step sizes, drawn from their table: a row for each point of each curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.labels import MARKS
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel
from adaqn.experiments.comparison.summary import spread, summary_rows

AVERAGED, LAST = "averaged_valid_loss", "valid_loss"
ALONE = plots.Size(7.2, 3.7, 1)
"""Of a figure with one panel."""


def sweep_rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """As of every figure, with the loss before the first step; of finished runs only."""
    return [
        {**row, "start": spread([run.metrics[0][LAST] for run in runs])}
        for curve in curves
        if curve.finished
        for row, runs in zip(summary_rows([curve]), curve.by_step_size().values(), strict=True)
    ]


def draw_sweep(spec: Comparison, rows: Sequence[dict[str, Any]], stem: Path, subtitle: str) -> list[Path]:
    """PNG, SVG and a smaller picture for a phone: the loss at the end by step size, one line per method."""
    return plots.save_both(lambda phone: _drawing(spec, rows, subtitle, phone=phone), stem)


def _drawing(spec: Comparison, rows: Sequence[dict[str, Any]], subtitle: str, *, phone: bool) -> Figure:
    count = len(spec.panels)
    size = plots.PHONE if phone else plots.DESKTOP if count > 1 else ALONE
    figure, grid = plots.panels(size, 1, count)
    drawn = {}
    for axes, panel in zip(grid.flat, spec.panels, strict=True):
        of_panel = [row for row in rows if row["panel"] == panel.title]
        drawn[axes] = _draw(axes, of_panel, panel, first=axes is grid.flat[0], phone=phone)
    _frame(grid.flat[0], rows, [line for lines in drawn.values() for line in lines])
    for axes, lines in drawn.items():
        top = axes.get_ylim()[1]
        plots.draw(axes, [_without_range_above(line, top) for line in lines], legend=False)
    plots.entitle(figure, spec.title, subtitle, phone=phone)
    plots.name_curves(figure, drawn)
    return figure


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], panel: Panel, *, first: bool, phone: bool) -> list[look.Line]:
    """What its lines are, and all but them; at the average, where all have one."""
    name = AVERAGED if all(AVERAGED in row for row in rows) else LAST
    lines, notes = [], {}
    for index, variant in enumerate(panel.variants):
        points = sorted((row for row in rows if row["curve"] == variant.label), key=lambda row: float(row["lr"]))
        if not points:
            notes[variant.label] = "not finished"
            continue
        if "missing" in points[0]:
            notes[variant.label] = points[0]["missing"]
        values = {part: [row[name][part] for row in points] for part in ("mean", "low", "high")}
        shade, mark = look.PALETTE[index % len(look.PALETTE)], MARKS[index % len(MARKS)]
        lines.append(look.line(variant.label, shade, [row["lr"] for row in points], values, f"-{mark}"))
    axes.set_xscale("log")
    height = plots.with_unit("loss at the end", rows[0]["unit"] if rows else "", phone=phone)
    plots.name_axes(axes, "step size", height if first or phone else "", panel.title)
    plots.note_missing(axes, notes)
    return lines


def _frame(axes: Axes, rows: Sequence[dict[str, Any]], lines: Sequence[look.Line]) -> None:
    """Up to the loss before the first step: a run that blew up may leave the picture. All panels have these heights."""
    starts = [row["start"]["high"] for row in rows if "start" in row and math.isfinite(row["start"]["high"])]
    lowest = [value for line in lines for value in line.low if math.isfinite(value)]
    if starts and lowest and max(starts) > min(lowest):
        margin = plots.MARGIN * (max(starts) - min(lowest))
        axes.set_ylim(min(lowest) - margin, max(starts) + margin)


def _without_range_above(line: look.Line, top: float) -> look.Line:
    """Where a curve has left the picture its range would only cover the others."""
    inside = [math.isfinite(mean) and mean <= top for mean in line.mean]
    low, high = (
        [value if there else math.nan for value, there in zip(values, inside, strict=True)]
        for values in (line.low, line.high)
    )
    return replace(line, low=low, high=high)
