"""The page of a study of whole batches: tables between two marks, a figure for each cell."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.labels import chief, label_ends
from adaqn.experiments.comparison.summary import over_seeds
from adaqn.experiments.study.page import markdown, write_between_marks
from adaqn.experiments.study.rows import ERRORS
from adaqn.experiments.study.whole_summary import WholeLine, median_text, scientific, span_text
from adaqn.experiments.training.options import command


def write_whole_page(found: dict[str, list[WholeLine]], page: Path, seeds: int) -> list[Path]:
    """Tables and figures; whatever people wrote around the marks stays."""
    pictures = page.parent / page.stem
    written = [page]
    parts = overviews(found, seeds)
    for name, of_cell in found.items():
        stem = pictures / name
        stem.parent.mkdir(parents=True, exist_ok=True)
        written += draw(of_cell, stem)
        parts.append(section(of_cell, stem.with_suffix(".svg").relative_to(page.parent)))
    write_between_marks(page, parts)
    return written


def overviews(found: dict[str, list[WholeLine]], seeds: int) -> list[str]:
    """For each set of rivals: medians of the loss, and of the error, one row per cell."""
    sets: dict[tuple[str, ...], list[list[WholeLine]]] = {}
    for of_cell in found.values():
        methods = tuple(variant.optimizer for variant in of_cell[0].panel.variants)
        sets.setdefault(methods, []).append(of_cell)
    texts = []
    for methods, cells in sets.items():
        for what, values in (("Loss", "loss"), ("Error", "error"), ("Loss in torch's seconds", "loss_in_time")):
            texts.append(f"### {what}, median over {seeds} seeds\n\n" + _overview(methods, cells, values))
    return texts


def _overview(methods: tuple[str, ...], cells: list[list[WholeLine]], values: str) -> str:
    labels = {line.method: line.label for of_cell in cells for line in of_cell}
    shown = [method for method in methods if method in labels]
    head = ["task", *(labels[method] for method in shown)]
    table = [head, ["---"] * len(head)]
    for of_cell in cells:
        texts = {line.method: median_text(getattr(line, values)) for line in of_cell}
        medians = [statistics.median(getattr(line, values)) for line in of_cell if getattr(line, values)]
        best = min(medians, default=None)
        bold = None if best is None else scientific(best)
        row = [texts.get(method, "–") for method in shown]
        table.append([of_cell[0].panel.title, *(f"**{text}**" if text == bold else text for text in row)])
    return markdown(table)


def section(of_cell: list[WholeLine], picture: Path) -> str:
    first = of_cell[0]
    head = [
        "method", "lr", "loss", "lowest to highest", "error", "lowest to highest", "ms an evaluation",
        "evaluations in torch's seconds", "loss then", "error then",
    ]  # fmt: skip
    table = [head, ["---"] * len(head)]
    for line in of_cell:
        table.append(
            [
                line.label, "–" if line.lr is None else f"{line.lr:g}" + (" †" if line.at_end else ""),
                f"**{median_text(line.loss)}**" if line is first else median_text(line.loss),
                span_text(line.loss), median_text(line.error), span_text(line.error),
                "–" if line.milliseconds is None else f"{line.milliseconds:.1f}",
                "–" if line.share is None else _evaluations(line),
                median_text(line.loss_in_time), median_text(line.error_in_time),
            ]
        )  # fmt: skip
    seeds = range(len(first.runs))
    return (
        f"### {first.panel.title}\n\n{first.steps} evaluations, {first.runs[0]['parameters']} weights, "
        f"{first.config.dtype}; {first.runs[0]['unit']}.\n\n![{first.panel.title}]({picture.as_posix()})\n\n"
        f"{markdown(table)}\n\nThe runs of the first row: `{command(first.config, seeds)}`"
    )


def _evaluations(line: WholeLine) -> str:
    assert line.share is not None
    return f"{line.share * line.steps:.0f}" + (" ‡" if line.share > 1.0 else "")


def draw(of_cell: list[WholeLine], stem: Path) -> list[Path]:
    """Loss and error, by evaluations and by the seconds that were measured; and a smaller picture for a phone."""
    best = chief(of_cell, lambda line: line.method)
    return [
        *plots.save(_drawing(of_cell, best, plots.DESKTOP), stem),
        *plots.save(_drawing(best, best, plots.PHONE), plots.for_phone(stem), ("svg",)),
    ]


def _drawing(of_cell: list[WholeLine], best: list[WholeLine], size: plots.Size) -> Figure:
    timed = [line for line in of_cell if line.milliseconds is not None]
    figure, axes = plots.panels(size, 2, 2 if timed else 1)
    short = size is plots.PHONE
    for row, (name, title) in enumerate((("test_loss", "loss"), (ERRORS, "error"))):
        by_step = [_drawn(line, name, minor=line not in best, short=short) for line in of_cell]
        plots.draw(axes[row][0], by_step, legend=False)
        plots.name_axes(axes[row][0], "evaluations", title, of_cell[0].panel.title if row == 0 else "")
        axes[row][0].set_yscale("log")
        label_ends(axes[row][0], by_step)
        if timed:
            scaled = [_drawn(line, name, (line.milliseconds or 0.0) / 1e3, minor=line not in best) for line in timed]
            plots.draw(axes[row][1], scaled, legend=False)
            plots.name_axes(axes[row][1], "seconds, one thread", title if short else "")
    return figure


def _drawn(line: WholeLine, name: str, factor: float = 1.0, *, minor: bool = False, short: bool = False) -> look.Line:
    steps = [step * factor for step in line.runs[0]["trace"]["step"]]
    values = over_seeds([run["trace"][name] for run in line.runs], statistics.median)  # as in the tables
    label = line.label if short else f"{line.label}  {median_text(line.error if name == ERRORS else line.loss)}"
    return look.line(label, look.colour(line.method), steps, values, look.style(line.method), minor=minor)


def as_whole_rows(found: dict[str, list[WholeLine]]) -> list[dict[str, Any]]:
    """For other programs."""
    kept = ("method", "lr", "loss", "error", "milliseconds", "share", "loss_in_time", "error_in_time")
    return [
        {"cell": name, **{key: getattr(line, key) for key in kept}}
        for name, of_cell in found.items()
        for line in of_cell
    ]
