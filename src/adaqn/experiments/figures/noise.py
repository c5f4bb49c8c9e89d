"""The figure of noise: from how few points per sample on is a stochastic method the better choice?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant
from adaqn.experiments.comparison.summary import spread, summary_rows
from adaqn.experiments.training.config import RunConfig

POINTS = (2_000, 500, 250, 100)
"""Per sample; before the first of them, as many that stay."""
EVERY = (20, 2)
"""Evaluations of a sample."""
VARIANTS = (
    Variant("lbfgs", "adaqn-lbfgs", "L-BFGS (adaQN)"),
    Variant("damped", "adaqn-lbfgs", "L-BFGS (adaQN), damping 0.2", (("damping", 0.2),)),
    Variant("torch", "torch-lbfgs", "L-BFGS (torch)"),
    Variant("soap", "soap", "SOAP, lr 0.003", lr=3e-3),
    Variant("adaqn", "adaqn", "adaQN"),
)
STYLES = {"lbfgs": "o-", "damped": "s--", "torch": "v-", "soap": "D-", "adaqn": "^:"}
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
    """PNG and SVG: loss, error and noise at the end by points per sample; a column for each age of samples."""
    fixed = spec.panels[0].base
    every = list(dict.fromkeys(panel.base.resample for panel in spec.panels[1:]))
    figure, grid = plt.subplots(
        len(ROWS), len(every), figsize=(5.6 * len(every), 2.8 * len(ROWS)), squeeze=False, sharex="col", sharey="row",
        layout="constrained",
    )  # fmt: skip
    for column, n in enumerate(every):
        of_column = [row for row in rows if row["resample"] in (n, fixed.resample)]
        for place, (quantity, name) in enumerate(ROWS.items()):
            axes = grid[place, column]
            _draw(axes, of_column, quantity, fixed.resample)
            title = f"new points after {n} evaluations" if place == 0 else ""
            below = "points per sample" if place == len(ROWS) - 1 else ""
            plots.name_axes(axes, below, name if column == 0 else "", title)
            legend = axes.get_legend()
            if legend is not None and (column or place):
                legend.remove()
    figure.suptitle(f"{spec.title}\n{subtitle}", x=0.01, ha="left", fontsize=11)
    return plots.save(figure, stem)


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], quantity: str, never: int) -> None:
    """One line for each method, from the least noise to the most."""
    places = list(dict.fromkeys((row["points"], row["resample"]) for row in rows))
    lines = []
    for variant in VARIANTS:
        of_line = [row for row in rows if row["curve"] == variant.label]
        x = [float(places.index((row["points"], row["resample"]))) for row in of_line]
        values = {name: [row[quantity][name] for row in of_line] for name in ("mean", "low", "high")}
        shade = look.PALETTE[1] if variant.optimizer == "adaqn" else look.colour(variant.optimizer)
        lines.append(look.line(variant.label, shade, x, values, STYLES[variant.name]))
    plots.draw(axes, lines)
    axes.set_yscale("log")
    words = [f"{points}\nfixed" if n == never else str(points) for points, n in places]
    axes.set_xticks(range(len(places)), words)
