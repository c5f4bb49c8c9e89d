"""Figures for people and papers: mean curves with their spread over seeds."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.storage import write_atomically

# Okabe and Ito's palette: told apart by colour-blind readers too. A name has the same colour in every figure.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
_FIXED = {
    **{"adaqn": 0, "adaqn-kronecker": 0, "adaqn-modern": 6, "adaqn-paper": 5},
    **{"adagrad": 4, "adam": 1, "soap": 2, "muon": 3, "shampoo": 5, "rmsprop": 6, "nag": 7},
}


@dataclass(frozen=True)
class Curve:
    """The mean over seeds, and the lowest and highest of them."""

    label: str
    colour: str
    x: np.ndarray[Any, np.dtype[np.float64]]
    mean: np.ndarray[Any, np.dtype[np.float64]]
    low: np.ndarray[Any, np.dtype[np.float64]]
    high: np.ndarray[Any, np.dtype[np.float64]]
    seeds: int


def colour(optimizer: str) -> str:
    return PALETTE[_FIXED.get(optimizer, sum(optimizer.encode()) % len(PALETTE))]


def curve(runs: Sequence[Finished], label: str, key: str, against: str = "epoch") -> Curve:
    """One curve from runs that differ only in their seed."""
    length = min(len(run.metrics) for run in runs)
    values = np.array(
        [[record[key] if record.get(key) is not None else math.nan for record in run.metrics[:length]] for run in runs],
        dtype=float,
    )
    x = np.mean([[record[against] for record in run.metrics[:length]] for run in runs], axis=0)
    optimizer = runs[0].result["config"]["optimizer"]
    return Curve(label, colour(optimizer), x, values.mean(0), values.min(0), values.max(0), len(runs))


def draw(
    axes: Axes, curves: Sequence[Curve], *, xlabel: str, ylabel: str, title: str = "", highest_first: bool = False
) -> None:
    """Lines with bands, and the final value beside each label, best first."""
    sign = -1.0 if highest_first else 1.0
    for c in sorted(curves, key=lambda c: (math.isnan(c.mean[-1]), sign * c.mean[-1])):
        axes.plot(c.x, c.mean, color=c.colour, linewidth=1.8, label=f"{c.label}  {c.mean[-1]:.3f}")
        if c.seeds > 1:
            axes.fill_between(c.x, c.low, c.high, color=c.colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize=10)
    plain(axes)


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


def comparison(groups: dict[str, list[Finished]], stem: Path, title: str) -> list[Path]:
    """Loss by epoch and by wall-clock time: label → runs of several seeds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    unit = next(iter(groups.values()))[0].result["unit"]
    for axes, against, xlabel in ((left, "epoch", "epoch"), (right, "seconds", "seconds of training")):
        curves = [curve(runs, label, "test_loss", against) for label, runs in groups.items()]
        draw(axes, curves, xlabel=xlabel, ylabel=f"test loss ({unit})" if axes is left else "", title=title)
    right.set_title("", loc="left")
    best = min(float(np.nanmin(line.get_ydata())) for line in left.get_lines())
    worst = max(float(line.get_ydata()[0]) for line in left.get_lines())
    if math.isfinite(best) and math.isfinite(worst) and worst > best:
        left.set_ylim(best - 0.05 * (worst - best), worst + 0.05 * (worst - best))
    return save(figure, stem)
