"""``docs/results.md``: what the study found, as tables and figures, losses included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.labels import chief, label_ends
from adaqn.experiments.comparison.summary import over_seeds
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import content_text, is_there
from adaqn.experiments.study.summary import YARDSTICK, Line, mean_text, range_text
from adaqn.experiments.training.options import command
from adaqn.experiments.training.storage import write_atomically

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
STYLES = {"adaqn-paper": ":", "adaqn-modern": "--", "adamw": "--", "shampoo": "-.", "nag": "-."}
"""Beside the colours, of which there are fewer than methods."""


def write_page(found: dict[str, list[Line]], page: Path, seeds: int, cells: Path | None = None) -> list[Path]:
    """Tables between two marks of the page, whatever people wrote around them stays; figures beside it.

    ``cells`` is the file of a study of one's own, for the commands that repeat a row.
    """
    page_text(page)  # says what is wrong with it before anything is drawn
    pictures = page.parent / "results"
    pictures.mkdir(parents=True, exist_ok=True)
    written = [page]
    parts = [overview(found, seeds)]
    for name, of_cell in found.items():
        stem = pictures / name
        written += draw(of_cell, stem)
        parts.append(section(of_cell, stem.with_suffix(".svg").relative_to(page.parent), cells))
    write_between_marks(page, parts)
    return written


def write_between_marks(page: Path, parts: list[str]) -> None:
    before, _, rest = page_text(page).partition(BEGIN)
    after = rest.partition(END)[2]
    whole = f"{before}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}"
    write_atomically(page, whole.encode())


def page_text(page: Path) -> str:
    """What is there already."""
    if not is_there(page):
        return f"# Results\n\n{BEGIN}\n{END}\n"
    text = content_text(page)
    if not 0 <= text.find(BEGIN) < text.find(END):
        raise UserError(f"{page} has no {BEGIN} with {END} after it, between which the tables go; it was left in place")
    return text


def overview(found: dict[str, list[Line]], seeds: int) -> str:
    """One row per cell: the headline numbers of adaQN's presets, Adam and SOAP."""
    methods = ("adam", "soap", "adaqn-paper", "adaqn-modern", "adaqn-kronecker")
    head = ["cell", *(f"{_label(found, m)}" for m in methods), "best of all", "time to Adam's end, Kronecker / Adam"]
    table = [head, ["---"] * len(head)]
    for of_cell in found.values():
        by_method = {line.method: line for line in of_cell}
        cells = [of_cell[0].panel.title]
        cells += [_loss(by_method[m].test, m == of_cell[0].method) if m in by_method else "–" for m in methods]
        cells += [of_cell[0].label, _ratio(by_method.get("adaqn-kronecker"), by_method.get(YARDSTICK))]
        table.append(cells)
    return f"### All cells: test loss at the end, mean over {seeds} seeds\n\n" + markdown(table)


def section(of_cell: list[Line], picture: Path, cells_file: Path | None = None) -> str:
    first = of_cell[0]
    head = [
        "method", "lr", "test loss", "lowest to highest", "averaged weights", "untuned", "ms a step",
        "steps to Adam's end", "seconds to Adam's end", "stored / skipped / rejected",
    ]  # fmt: skip
    if first.accuracy:
        head.insert(4, "accuracy")
    table = [head, ["---"] * len(head)]
    for line in of_cell:
        cells = [
            line.label, f"{line.lr:g}" + (" †" if line.at_end else ""), _loss(line.test, line is first),
            range_text(line.test), _loss(line.averaged), _loss(line.untuned),
            "–" if line.milliseconds is None else f"{line.milliseconds:.1f}",
            "–" if line.steps_to_adam is None else f"{line.steps_to_adam:.0f}",
            "–" if line.seconds_to_adam is None else f"{line.seconds_to_adam:.1f}",
            "–" if line.cycles is None else " / ".join(map(str, line.cycles.values())),
        ]  # fmt: skip
        if first.accuracy:
            cells.insert(4, f"{100 * sum(line.accuracy) / len(line.accuracy):.1f} %" if line.accuracy else "–")
        table.append(cells)
    own = "" if cells_file is None else f" --cells {cells_file}"
    repeat = f"adaqn study{own} --cell {first.panel.name} --method {first.method} --results again --out again/runs"
    return (
        f"### {first.panel.title}\n\n{first.steps} steps, {first.unit}; {len(of_cell)} methods.\n\n"
        f"![{first.panel.title}]({picture})\n\n{markdown(table)}\n\n"
        f"A row again: `{repeat}`. Its runs: `{command(first.config, range(first.seeds))}`"
    )


def draw(of_cell: list[Line], stem: Path) -> list[Path]:
    """Mean test loss by step and, of those methods that were timed, by time; and a smaller picture for a phone."""
    best = chief(of_cell, lambda line: line.method)
    return [
        *plots.save(_drawing(of_cell, best, plots.DESKTOP), stem),
        *plots.save(_drawing(best, best, plots.PHONE), plots.for_phone(stem), ("svg",)),
    ]


def _drawing(of_cell: list[Line], best: list[Line], size: plots.Size) -> Figure:
    timed = [line for line in of_cell if line.milliseconds is not None]
    figure, axes = plots.panels(size, 1, 2 if timed else 1)
    by_step = [_drawn(line, minor=line not in best, short=size is plots.PHONE) for line in of_cell]
    plots.draw(axes[0][0], by_step, legend=False)
    plots.frame(axes[0][0], by_step, shown=plots.BEGUN, logarithmic=True)
    plots.name_axes(axes[0][0], "step", f"test loss ({of_cell[0].unit})", of_cell[0].panel.title)
    label_ends(axes[0][0], by_step)
    if timed:
        by_time = [_drawn(line, (line.milliseconds or 0.0) / 1e3, minor=line not in best) for line in timed]
        plots.draw(axes[0][1], by_time, legend=False)
        plots.name_axes(axes[0][1], "seconds of training, one thread", "test loss" if size is plots.PHONE else "")
    return figure


def _drawn(line: Line, factor: float = 1.0, *, minor: bool = False, short: bool = False) -> look.Line:
    steps = [step * factor for step in line.runs[0]["trace"]["step"]]
    label = line.label if short else f"{line.label}  {mean_text(line.test)}"
    values = over_seeds([run["trace"]["test_loss"] for run in line.runs])
    return look.line(label, look.colour(line.method), steps, values, STYLES.get(line.method, "-"), minor=minor)


def as_json_rows(found: dict[str, list[Line]]) -> list[dict[str, Any]]:
    """For other programs."""
    kept = ("method", "lr", "seeds", "test", "averaged", "untuned", "milliseconds", "steps_to_adam", "seconds_to_adam")
    return [
        {"cell": name, **{key: getattr(line, key) for key in kept}}
        for name, of_cell in found.items()
        for line in of_cell
    ]


def _label(found: dict[str, list[Line]], method: str) -> str:
    return next((line.label for of_cell in found.values() for line in of_cell if line.method == method), method)


def _loss(values: list[float], bold: bool = False) -> str:
    text = mean_text(values)
    return f"**{text}**" if bold else text


def _ratio(ours: Line | None, adam: Line | None) -> str:
    if ours is None or adam is None or ours.seconds_to_adam is None or not adam.seconds_to_adam:
        return "–"
    return f"{ours.seconds_to_adam / adam.seconds_to_adam:.2f}"


def markdown(table: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)
