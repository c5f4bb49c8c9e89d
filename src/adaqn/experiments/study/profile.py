"""A performance profile: on which share of the cells a method is at tuned AdamW's loss within τ times the best seconds.

Dolan and Moré's way to look at many problems at once: how far left a curve rises says how often the method is the
fastest, how high it ends on how many cells it gets there at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.labels import chief, label_ends
from adaqn.experiments.study.summary import Found, Line

NAME = "profile"
UNTUNED = ", untuned"
OURS = "adaqn"
"""Whose runs at the default step size are a curve of their own."""
TICKS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
LARGEST = 16.0
"""τ at the right end, at most."""


@dataclass(frozen=True)
class Profile:
    """One curve."""

    method: str
    label: str
    ratios: list[float]
    """Seconds in those of the fastest, one per cell; infinite where the loss was never reached."""
    untuned: bool = False

    def share(self, tau: float) -> float:
        """The height of the curve there.

        >>> Profile("adam", "Adam", [1.0, 2.5, math.inf]).share(2.5)
        0.6666666666666666
        """
        return sum(ratio <= tau for ratio in self.ratios) / len(self.ratios)


def profiles(found: Found, methods: Sequence[str]) -> list[Profile]:
    """Of these methods, on the cells where all of them were timed."""
    cells = [cell for cell in found.values() if set(methods) <= _timed(cell)]
    if not cells:
        return []
    ratios: dict[tuple[str, bool], list[float]] = {}
    labels = {line.method: line.label for cell in cells for line, *_ in cell}
    for cell in cells:
        seconds = {(line.method, False): line.seconds_to_goal for line, *_ in cell if line.method in methods}
        ours = [line for regimes in cell for line in regimes if line.method == OURS and line.untuned]
        for line in (line for line in ours if line.config.schedule == "constant"):
            seconds[OURS, True] = line.untuned_seconds_to_goal
        fastest = min((value for value in seconds.values() if value is not None), default=math.nan)
        for key, value in seconds.items():
            ratios.setdefault(key, []).append(math.inf if value is None else value / fastest)
    made = [
        Profile(method, labels[method] + (UNTUNED if untuned else ""), theirs, untuned)
        for (method, untuned), theirs in ratios.items()
        if len(theirs) == len(cells)
    ]
    return sorted(made, key=lambda p: (-p.share(LARGEST), -p.share(1.0), p.label))


def _timed(cell: list[list[Line]]) -> set[str]:
    return {line.method for line, *_ in cell if line.milliseconds is not None and line.goal is not None}


def views(found: Found) -> list[tuple[str, list[Profile]]]:
    """(title, curves): the methods that are on all cells, then more and more methods on fewer and fewer cells."""
    timed = [frozenset(methods) for cell in found.values() if (methods := _timed(cell))]
    if not timed:
        return []
    sets = sorted({frozenset.intersection(*timed), *timed}, key=lambda methods: (len(methods), sorted(methods)))
    return [(_title(p), p) for methods in sets if (p := profiles(found, sorted(methods)))]


def _title(curves: list[Profile]) -> str:
    count = len(curves[0].ratios)
    return "one task" if count == 1 else f"{count} tasks"


def text(found: Found, pictures: Path) -> str:
    """The part of the page; nothing where nothing was timed."""
    if not views(found):
        return ""
    return (
        "### How often, and how fast\n\nThe share of tasks on which a method, in its better regime, has come to tuned "
        "AdamW's final test loss within τ times the seconds of the fastest. Methods that run on all tasks, and then "
        f"more methods on the tasks that have them.\n\n![performance profile]({(pictures / NAME).as_posix()}.svg)"
    )


def draw(found: Found, stem: Path) -> list[Path]:
    """One panel for each view, and a smaller picture for a phone."""
    shown = views(found)
    if not shown:
        return []
    return [
        *plots.save(_drawing(shown, plots.DESKTOP), stem),
        *plots.save(_drawing(shown, plots.PHONE), plots.for_phone(stem), ("svg",)),
    ]


def _drawing(shown: list[tuple[str, list[Profile]]], size: plots.Size) -> Figure:
    figure, axes = plots.panels(size, 1, len(shown))
    for panel, (title, curves) in zip(axes.flat, shown, strict=True):
        known = chief(curves, lambda p: p.method)
        best = [curve for curve in curves if curve in known or curve.method == OURS]
        _draw(panel, best if size is plots.PHONE else curves, best, title)
        if panel is not axes.flat[0] and size is plots.DESKTOP:
            panel.set_ylabel("")
    return figure


def _draw(axes: Axes, curves: list[Profile], best: list[Profile], title: str) -> None:
    finite = [ratio for curve in curves for ratio in curve.ratios if math.isfinite(ratio)]
    right = min(LARGEST, 1.1 * max(finite, default=2.0))
    lines = [_stairs(curve, right, minor=curve not in best) for curve in curves]
    plots.draw(axes, lines, legend=False)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1.0, right)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xticks([tick for tick in TICKS if tick <= right])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    plots.name_axes(axes, "τ: seconds, in those of the fastest", "share of tasks", title)
    label_ends(axes, lines)


def _stairs(curve: Profile, right: float, *, minor: bool) -> look.Line:
    """Level between two ratios."""
    places = sorted({1.0, *(ratio for ratio in curve.ratios if ratio < right), right})
    x = [place for left, end in pairwise(places) for place in (left, end)]
    y = [curve.share(place) for place in places[:-1] for _ in range(2)]
    label = f"{curve.label}  {curve.share(right):.0%}"
    style = ":" if curve.untuned else look.style_among_many(curve.method)
    return look.Line(label, look.colour(curve.method), x, y, y, y, style, minor)
