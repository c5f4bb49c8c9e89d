"""The figure of noise: from how few points per sample on is a stochastic method the better choice?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant
from adaqn.experiments.comparison.summary import spread, summary_rows
from adaqn.experiments.training.config import RunConfig

POINTS = (2_000, 500, 250, 100)
"""Per sample; before the first of them, as many that stay."""
EVERY = (20, 2)
"""Evaluations of a sample."""
VARIANTS = (
    Variant("lbfgs", "adaqn-lbfgs", "L-BFGS (adaqn)"),
    Variant("damped", "adaqn-lbfgs", "L-BFGS (adaqn), damping 0.2", (("damping", 0.2),)),
    Variant("torch", "torch-lbfgs", "L-BFGS (torch)"),
    Variant("soap", "soap", "SOAP, lr 0.003", lr=3e-3),
    Variant("adaqn", "adaqn", "AdaQN"),
)
STYLES = {"lbfgs": "-o", "damped": "--s", "torch": "-v", "soap": "-D", "adaqn": ":^"}
SHORT = {"damped": "L-BFGS, damped", "soap": "SOAP"}
SAID_ABOVE = "damping 0.2, SOAP with lr 0.003"
"""What is left out of names that are too long beside a curve."""
SIZE = plots.Size(10.4, 2.8, 2)
ROWS = {
    "test_loss": "loss, on points for all",
    "test_error": "relative L2 error",
    "noise": "|Δloss|/loss of a new sample",
}


def noise_spec(base: RunConfig, points: Sequence[int] = POINTS, every: Sequence[int] = EVERY) -> Comparison:
    """A panel for each number of points and of evaluations of a sample; the first has one sample for the whole run."""
    complete = base.complete()
    assert complete.steps is not None
    sizes = [(points[0], complete.steps), *((count, n) for n in every for count in points)]
    panels = tuple(
        Panel(name, replace(complete, points=count, resample=n), VARIANTS, name=name)
        for count, n in sizes
        for name in (f"{count} points, new after {n}",)
    )
    title = f"{complete.problem}, {complete.layers} × {complete.hidden}, {complete.steps} evaluations, {complete.dtype}"
    return Comparison(f"noise-{complete.problem}", title, panels)


def noise_rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """As of every figure, with the points and the evaluations of a sample, and its noise at the end."""
    return [
        {
            **summary_rows([curve])[0],
            "points": curve.panel.base.points,
            "resample": curve.panel.base.resample,
            "noise": spread([run.result["noise"] for run in curve.runs]),
        }
        for curve in curves
    ]


def draw_noise(spec: Comparison, rows: Sequence[dict[str, Any]], stem: Path, subtitle: str) -> list[Path]:
    """PNG, SVG and a smaller picture for a phone: loss, error and noise at the end by points per sample."""
    return plots.save_both(lambda phone: _drawing(spec, rows, subtitle, phone=phone), stem)


def _drawing(spec: Comparison, rows: Sequence[dict[str, Any]], subtitle: str, *, phone: bool) -> Figure:
    """A row for each quantity, a column for each age of samples."""
    fixed = spec.panels[0].base
    every = list(dict.fromkeys(panel.base.resample for panel in spec.panels[1:]))
    figure, grid = plots.panels(plots.PHONE if phone else SIZE, len(ROWS), len(every))
    drawn = {}
    for column, n in enumerate(every):
        of_column = [row for row in rows if row["resample"] in (n, fixed.resample)]
        for place, (quantity, name) in enumerate(ROWS.items()):
            axes, last = grid[place, column], phone or place == len(ROWS) - 1
            drawn[axes] = _draw(axes, of_column, quantity, fixed.resample)
            title = f"new points after {n} evaluations" if phone or place == 0 else ""
            plots.name_axes(axes, "points per sample" if last else "", name if phone or column == 0 else "", title)
            axes.tick_params(labelbottom=last)
    plots.entitle(figure, spec.title, f"{subtitle}; {SAID_ABOVE}", phone=phone)
    plots.name_curves(figure, drawn)
    return figure


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], quantity: str, never: int) -> list[look.Line]:
    """One line for each method, from the least noise to the most."""
    places = list(dict.fromkeys((row["points"], row["resample"]) for row in rows))
    lines = []
    for variant in VARIANTS:
        of_line = [row for row in rows if row["curve"] == variant.label]
        x = [float(places.index((row["points"], row["resample"]))) for row in of_line]
        values = {name: [row[quantity][name] for row in of_line] for name in ("mean", "low", "high")}
        shade = look.PALETTE[1] if variant.optimizer == "adaqn" else look.colour(variant.optimizer)
        label = SHORT.get(variant.name, variant.label)
        lines.append(look.line(label, shade, x, values, STYLES[variant.name]))
    plots.draw(axes, lines, legend=False)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    words = [f"{points}\nfixed" if n == never else str(points) for points, n in places]
    axes.set_xticks(range(len(places)), words)
    return lines
