"""What is known at any time: the loss at an average along one run, against schedules that end early.

With a schedule one decides beforehand when a run ends. An average has no such moment: the picture asks what that costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.labels import label_ends
from adaqn.experiments.comparison.panels import Panel
from adaqn.experiments.comparison.summary import over_seeds, spread
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.summary import Found, Line, lines, loss_text

NAME = "anytime"
OURS = "adaqn"
BEGUN = 0.2
"""The share of the run before which the losses are too high to be shown."""


@dataclass(frozen=True)
class Ends:
    """One method's runs with a schedule, the shortest first."""

    method: str
    label: str
    lines: list[Line]


@dataclass(frozen=True)
class Cell:
    """A panel of the picture."""

    panel: Panel
    along: Line
    """Without a schedule, at the average."""
    ends: list[Ends]


Shown = list[Cell]


def cells(plan: Plan, found: Found, folder: Path) -> Shown:
    """Of every cell with shorter runs what is finished; a method counts when all its lengths are."""
    shorter = lines(Plan(plan.shorter, plan.seeds, plan.regimes), folder)
    made = []
    for panel in plan.panels:
        theirs = [short for short in plan.shorter if short.name == f"{panel.name}-{short.base.steps}"]
        along = _line(found, panel.name, OURS, "constant")
        methods = dict.fromkeys(variant.optimizer for short in theirs for variant in short.variants)
        ends = [_ends(method, panel, theirs, found, shorter) for method in methods]
        whole = [end for end in ends if end is not None]
        if along is not None and whole:
            made.append(Cell(panel, along, whole))
    return made


def _ends(method: str, panel: Panel, theirs: list[Panel], found: Found, shorter: Found) -> Ends | None:
    names = [(shorter, short.name) for short in sorted(theirs, key=lambda short: short.base.steps or 0)]
    known = [_line(where, name, method, "cosine") for where, name in [*names, (found, panel.name)]]
    whole = [line for line in known if line is not None]
    return Ends(method, whole[0].label, whole) if len(whole) == len(known) else None


def _line(found: Found, cell: str, method: str, schedule: str) -> Line | None:
    regimes = [line for methods in found.get(cell, []) for line in methods if line.method == method]
    return next((line for line in regimes if line.config.schedule == schedule), None)


def text(shown: Shown, pictures: Path) -> str:
    """The part of the page; nothing where nothing is finished."""
    if not shown:
        return ""
    return (
        "### At any time\n\nThe test loss at the average along one run without a schedule, and the last weights of "
        "runs with a cosine schedule that ended there, each with its own best step size.\n\n"
        f"![the loss at any time]({(pictures / NAME).as_posix()}.svg)"
    )


def draw(shown: Shown, stem: Path) -> list[Path]:
    """One panel for each cell, and a smaller picture for a phone."""
    if not shown:
        return []
    return [
        *plots.save(_drawing(shown, plots.DESKTOP), stem),
        *plots.save(_drawing(shown, plots.PHONE), plots.for_phone(stem), ("svg",)),
    ]


def _drawing(shown: Shown, size: plots.Size) -> Figure:
    figure, axes = plots.panels(size, 1, len(shown), same_heights=False)  # losses of two cells do not compare
    for panel, cell in zip(axes.flat, shown, strict=True):
        _draw(panel, cell, short=size is plots.PHONE)
    return figure


def _draw(axes: Axes, cell: Cell, *, short: bool) -> None:
    along = cell.along
    steps = along.runs[0]["trace"]["step"]
    values = over_seeds([run["trace"][along.key] for run in along.runs])
    drawn = [look.line(_label(f"{along.label}, average", along, short), look.colour(OURS), steps, values)]
    for end in cell.ends:
        found = [spread(line.test) for line in end.lines]
        ends = {name: [values[name] for values in found] for name in ("mean", "low", "high")}
        label = _label(f"{end.label}, cosine", end.lines[-1], short)
        x = [line.steps for line in end.lines]
        drawn.append(look.line(label, look.colour(end.method), x, ends, "--o"))
    plots.draw(axes, drawn, legend=False)
    begun = BEGUN * along.steps
    heights = [y for line in drawn for x, y in zip(line.x, line.mean, strict=True) if x >= begun and y == y]
    margin = plots.MARGIN * (max(heights) - min(heights))
    axes.set_ylim(min(heights) - margin, max(heights) + margin)
    plots.name_axes(axes, "step", f"test loss ({along.unit})", along.panel.title)
    label_ends(axes, drawn)


def _label(name: str, line: Line, short: bool) -> str:
    return name if short else f"{name}  {loss_text(line.mean)}"
