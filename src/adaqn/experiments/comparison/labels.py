"""Names beside the ends of their curves, so that no legend covers any; and which curves are worth a colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes

from adaqn.experiments.comparison.headline import OURS
from adaqn.experiments.comparison.look import Line

CHIEF = 4
"""Curves that are drawn with their bands; all that there are on a phone."""
ALWAYS = ("adam", "adamw", "torch-lbfgs", "soap")
NEWER = "adamw"
"""In its place Adam itself is one of the others."""
MARKS = "osD^vP"
"""Letters of a style that are marks at points: a name needs none before it."""
SAMPLE = (1.045, 1.095)
"""From where to where a piece of the curve stands before its name, in widths of the axes."""
EDGE = 0.999
"""A curve that ends there has come to the right end of its axes."""
T = TypeVar("T")


def chief(ranked: Sequence[T], method: Callable[[T], str], count: int = CHIEF) -> list[T]:
    """The best of ours, those that everybody knows, and then the best of the others, in the order they came in.

    >>> chief(["soap", "muon", "adaqn-modern", "adaqn", "nag", "adam"], str)
    ['soap', 'muon', 'adaqn-modern', 'adam']
    """
    ours = [item for item in ranked if method(item).startswith(OURS)][:1]
    there = {method(item) for item in ranked}
    known = [
        item for name in ALWAYS for item in ranked if method(item) == name and not (name == "adam" and NEWER in there)
    ]
    first = list(dict.fromkeys(map(id, [*ours, *known, *ranked])))[:count]
    return [item for item in ranked if id(item) in first]


def label_ends(axes: Axes, lines: Sequence[Line], size: float = 8.0) -> None:
    """Each name at the height where its curve ends, moved apart where two would overlap; limits must be set before.

    Where curves have marks, these keep their margin. A curve that ends early is led to its name by a dotted line.
    """
    if not any(set(line.style) & set(MARKS) for line in lines):
        axes.set_xlim(right=max(line.x[-1] for line in lines))
    ends = sorted(((_height(axes, line), line) for line in lines), key=lambda pair: pair[0])
    inches = axes.get_window_extent().height / axes.figure.dpi
    places = spread_out([height for height, _ in ends], 1.3 * size / (72.0 * inches))
    at_edge: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "solid_capstyle": "butt"}
    for (height, line), place in zip(ends, places, strict=True):
        width = 0.9 if line.minor else 1.8
        axes.plot([1.0, SAMPLE[0]], [height, place], color=line.colour, linewidth=0.6, **at_edge)
        if (end := _across(axes, line)) < EDGE and 0.0 < height < 1.0:
            axes.plot([end, 1.0], [height, height], ":", color=line.colour, linewidth=0.8, **at_edge)
        dashes = line.style.rstrip(MARKS)
        axes.plot(SAMPLE, [place, place], dashes, color=line.colour, linewidth=width, **at_edge)
        axes.text(SAMPLE[1] + 0.015, place, line.label, transform=axes.transAxes, va="center", fontsize=size)


def _across(axes: Axes, line: Line) -> float:
    """Where a curve ends, in widths of the axes."""
    x = axes.transScale.transform((line.x[-1], axes.get_ylim()[1]))
    return float(axes.transLimits.transform(x)[0])


def _height(axes: Axes, line: Line) -> float:
    """Of the end of a curve, in heights of the axes; at the top if it left the picture there."""
    end = line.mean[-1]
    if not math.isfinite(end) or (axes.get_yscale() == "log" and end <= 0.0):
        return 1.0
    return min(1.0, max(0.0, float(axes.transLimits.transform(axes.transScale.transform((line.x[-1], end)))[1])))


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Sorted heights, moved as little as it takes to be ``gap`` apart; they may leave 0 to 1 where there are many.

    >>> [round(h, 2) for h in spread_out([0.1, 0.1, 0.9], 0.2)]
    [0.0, 0.2, 0.9]
    """
    groups: list[list[float]] = []  # (sum of wishes for the lowest place, how many, lowest place)
    for height in heights:
        groups.append([height, 1.0, height])
        while len(groups) > 1 and groups[-2][2] + groups[-2][1] * gap > groups[-1][2]:
            wishes, count, _ = groups.pop()
            before = groups[-1]
            total = before[0] + wishes - count * before[1] * gap
            groups[-1] = [total, before[1] + count, total / (before[1] + count)]
    return [low + i * gap for _, count, low in groups for i in range(int(count))]
