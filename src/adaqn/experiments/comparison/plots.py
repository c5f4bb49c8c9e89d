"""Curves on paper: means with their spread over seeds, in every picture that the laboratory makes."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from adaqn.experiments.comparison.compact import compact
from adaqn.experiments.comparison.dark import RC, with_dark_mode
from adaqn.experiments.comparison.labels import chief, label_ends
from adaqn.experiments.comparison.look import PALETTE, Line, colour, line
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant, View
from adaqn.experiments.comparison.summary import over_seeds, so_far, spread
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.storage import write_atomically
from adaqn.experiments.training.whole_settings import is_whole

matplotlib.rcParams.update(RC)
matplotlib.rcParams["svg.hashsalt"] = "adaqn"  # the same file from the same numbers
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
WIDTH = 5.2
"""Inches of a panel with the names beside its curves."""
LETTERS = 56
"""Of a line of the title on a phone."""
MOST_ON_PHONE = 6
"""Curves of a panel."""
MOST_ALIKE = 3
"""Curves of which the same is missing, named one by one."""
BEGUN = 0.6
"""The share that is shown where the first steps say nothing."""
SETTLED = 0.05
"""Of a long run: what lies above all its later losses is not shown, or they would be one flat line."""
DECADES_APART = 25.0
"""Losses that fall by more than this factor are drawn on a logarithmic axis, where that is allowed."""
ABOVE = 3.0
"""Times the highest start and below the lowest loss, where a logarithmic axis ends."""


def line_of(runs: Sequence[Finished], variant: Variant, view: View) -> Line:
    """From runs of it that differ only in their seed."""
    prefix = variant.prefix if view.metric.startswith("test_") else ""
    length = min(len(run.metrics) for run in runs)
    start = 1 if view.metric == "average_memory" else 0  # nothing was averaged yet before the first step
    records = [run.metrics[start:length] for run in runs]
    x = over_seeds([[record[view.against] for record in run] for run in records])["mean"]
    shown = [so_far(run, prefix) for run in records] if view.so_far else records
    values = over_seeds([[record.get(f"{prefix}{view.metric}") if record else None for record in run] for run in shown])
    label = f"{variant.label}, average" if prefix else variant.label
    return line(label, colour(variant.optimizer), x, values)


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
    after: float = 0.0,
    logarithmic: bool = False,
    with_ends: bool = False,
) -> None:
    """From the lowest value up to the highest start: a run that blew up may leave the picture.

    Args:
        axes: are set.
        lines: what is drawn in them.
        shown: the share of those heights that is shown.
        after: the share of the longest line in which heights need not be shown.
        logarithmic: may the axis be, where losses fall by decades?
        with_ends: show more than that share where the second half of a line lies above it, but for a few jumps.
    """
    starts = [line.mean[0] for line in lines if math.isfinite(line.mean[0])]
    ends = [value for line in lines for value in line.low if math.isfinite(value)]
    if not starts or not ends or not max(starts) > min(ends):
        return
    top, bottom = max(starts), min(ends)
    if logarithmic and 0.0 < bottom < top / DECADES_APART:
        axes.set_yscale("log")
        axes.set_ylim(bottom / ABOVE, min(axes.get_ylim()[1], ABOVE * top))
        return
    until = after * max(line.x[-1] for line in lines)
    least = 2 if after else 1  # where few points are drawn, the first one after the start
    early = [line.mean[: max(least, sum(x <= until for x in line.x))] for line in lines]
    settled = [min(finite) for values in early if (finite := [value for value in values if math.isfinite(value)])]
    highest_settled = max(settled, default=top)
    height = min(shown * (top - bottom), (1.0 + MARGIN) * (highest_settled - bottom) or math.inf)  # if not flat
    later = [value for line in lines for value in _usual(line.mean[len(line.mean) // 2 :], top)] if with_ends else []
    highest = max([bottom + height, *(value + MARGIN * height for value in later)])
    axes.set_ylim(bottom - MARGIN * (highest - bottom), highest)


def _usual(values: Sequence[float], top: float) -> list[float]:
    """The last one, and all but the highest tenth; none that left the picture."""
    ranked = sorted(values, key=lambda value: (not math.isfinite(value), value))
    return [value for value in (*ranked[: math.ceil(0.9 * len(ranked))], values[-1]) if value <= top]


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
        if kind == "svg":
            contents = with_dark_mode(compact(contents.decode()), PALETTE).encode()
        path = stem.with_suffix(f".{kind}")
        write_atomically(path, contents)
        written.append(path)
    plt.close(figure)
    return written


def save_both(drawing: Callable[[bool], Figure], stem: Path) -> list[Path]:
    """PNG and SVG, and beside them the picture for a phone: ``drawing`` is told which of them it makes."""
    return [*save(drawing(False), stem), *save(drawing(True), for_phone(stem), ("svg",))]


def entitle(figure: Figure, title: str, subtitle: str, *, phone: bool) -> None:
    """Above all panels, in as many lines as it takes on a phone."""
    lines = [part for text in (title, subtitle) for part in (textwrap.wrap(text, LETTERS) if phone else [text])]
    figure.suptitle("\n".join(lines).strip(), x=0.01, ha="left", fontsize=9 if phone else 11)


def draw_comparison(
    comparison: Comparison, curves: Sequence[Curve], stem: Path, subtitle: str = "", *, phone: bool = False
) -> list[Path]:
    """PNG and SVG of all panels, each in all its views; and a smaller picture for a phone, if asked for."""
    if comparison.apart:
        return [
            file
            for panel in comparison.panels
            for file in draw_comparison(
                replace(comparison, panels=(panel,), apart=False),
                [curve for curve in curves if curve.panel.cell == panel.cell],
                stem.with_name(f"{stem.name}-{panel.file_name.removeprefix(f'{comparison.name}-')}"),
                subtitle,
                phone=phone,
            )
        ]
    if phone:
        return save_both(lambda narrow: comparison_figure(comparison, curves, subtitle, phone=narrow), stem)
    return save(comparison_figure(comparison, curves, subtitle), stem)


def comparison_figure(
    comparison: Comparison, curves: Sequence[Curve], subtitle: str = "", *, phone: bool = False
) -> Figure:
    """Names stand beside their curves: of views side by side in the first of a quantity, since the others are alike."""
    drawn = [(panel, view) for panel in comparison.panels for view in comparison.views]
    columns = 1 if phone else min(comparison.columns, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    size = (PHONE.width, PHONE.height * rows) if phone else (max(6.0, WIDTH * columns), 3.6 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    places = (grid.T if comparison.downwards else grid).flatten()
    for axes in places[len(drawn) :]:
        axes.set_visible(False)
    named: dict[tuple[str, str, str], tuple[Axes, list[Line]]] = {}
    for axes, (panel, view) in zip(places, drawn, strict=False):
        shown = [curve for curve in curves if curve.panel.cell == panel.cell]
        lines = draw_panel(axes, fewer(shown) if phone else shown, panel, view, short=phone)
        named.setdefault((panel.cell, view.metric, "" if columns > 1 else view.against), (axes, lines))
    entitle(figure, comparison.title, subtitle, phone=phone)
    name_curves(figure, dict(named.values()))
    return figure


def name_curves(figure: Figure, named: Mapping[Axes, Sequence[Line]]) -> None:
    """Beside the axes of a figure that is complete but for that: how far names are apart depends on all the rest."""
    figure.draw_without_rendering()
    for axes, lines in named.items():
        if lines:
            label_ends(axes, lines)


def fewer(curves: Sequence[Curve]) -> list[Curve]:
    """Those that a phone has room for."""
    if len(curves) <= MOST_ON_PHONE:
        return list(curves)
    ends = {id(c): spread([run.result["final"]["test_loss"] for run in c.shown])["mean"] for c in curves if c.runs}
    ranked = sorted((c for c in curves if c.runs), key=lambda c: (not math.isfinite(ends[id(c)]), ends[id(c)]))
    return chief(ranked, lambda curve: curve.variant.optimizer, MOST_ON_PHONE)


def draw_panel(axes: Axes, shown: Sequence[Curve], panel: Panel, view: View, *, short: bool = False) -> list[Line]:
    """One line per curve, with its last value beside its name; what is missing is said in a corner.

    The line is the mean of the finished seeds, or the seed that is furthest; others are thin, as far as they go.
    Returns the lines that have a name.
    """
    lines, thin, jumping, whole = [], [], [], is_whole(panel.base.task)
    alike = len({colour(curve.variant.optimizer) for curve in shown}) < len(shown)
    for index, curve in enumerate(shown):
        if not curve.runs:
            continue
        drawn = line_of(curve.shown, curve.variant, view)
        if not short:
            where = "" if curve.finished or view.against != "epoch" else f" at {drawn.x[-1]:.3g}"
            drawn = replace(drawn, label=f"{drawn.label}  {_end(drawn.mean[-1], whole)}{where}")
        if alike:  # one optimizer in several variants, or more methods than colours
            turn, place = divmod(index, len(PALETTE))
            drawn = replace(drawn, colour=PALETTE[place], style=STYLES[turn % len(STYLES)])
        lines.append(drawn)
        as_measured = replace(view, so_far=False)
        for run in curve.runs:
            if run not in curve.shown:
                other = line_of([run], curve.variant, as_measured)
                thin.append(replace(other, label="_", colour=drawn.colour, style=":", minor=True))
            elif view.so_far:
                now = line_of([run], curve.variant, as_measured)
                jumping.append(replace(now, label="_", colour=drawn.colour, minor=True))
    draw(axes, [*lines, *thin, *jumping], legend=False)
    notes = {curve.variant.label: curve.note for curve in shown if curve.note}
    if not lines:  # nothing to measure
        axes.set(xticks=[], yticks=[])
    unit = _unit(shown) if view.metric == "test_loss" else ""
    names = {**NAMES, **WHOLE_NAMES} if whole else NAMES
    name_axes(axes, names[view.against], with_unit(names[view.metric], unit, phone=short), panel.title)
    note_missing(axes, notes, panel.length_note)
    if view.metric == "test_loss":
        frame(axes, [*lines, *thin], shown=BEGUN, after=SETTLED, logarithmic=whole or view.wide, with_ends=True)
    elif view.metric == "average_memory":
        axes.set_ylim(bottom=0.0)
    if view.wide and view.against != "step":  # a run of one method takes as long as a hundred of another
        axes.set_xscale("log", nonpositive="mask")
        axes.xaxis.set_minor_formatter(NullFormatter())
    return lines


def _end(loss: float, whole: bool) -> str:
    """The last value, as it stands beside the name of its curve."""
    return f"{loss:.2e}" if whole or not 0.001 <= abs(loss) < 1e4 else f"{loss:.3f}"


def note_missing(axes: Axes, notes: Mapping[str, str], first: str = "") -> None:
    """What there is not yet of the curves, between panel and title, where no curve is; one line of those alike."""
    alike: dict[str, list[str]] = {}
    for label, note in notes.items():
        alike.setdefault(note, []).append(label)
    lines = [
        f"{', '.join(labels) if len(labels) <= MOST_ALIKE else f'{len(labels)} curves'}: {note}"
        for note, labels in alike.items()
    ]
    said = "\n".join([first, *lines] if first else lines)
    if said:
        size = 7.0
        axes.text(0.0, 1.02, said, transform=axes.transAxes, fontsize=size)
        title = axes.get_title(loc="left")
        axes.set_title(title, loc="left", fontsize=10, pad=1.2 * size * (said.count("\n") + 1) + size)


def with_unit(name: str, unit: str, *, phone: bool) -> str:
    """The name of an axis, in two lines where one is higher than the panel."""
    return f"{name}{chr(10) if phone else ' '}({unit})" if unit else name


def _unit(shown: Sequence[Curve]) -> str:
    return next((str(curve.runs[0].result["unit"]) for curve in shown if curve.runs), "")
