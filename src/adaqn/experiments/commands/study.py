"""``adaqn study``: say how long it takes, run what is missing, time the methods, write the page."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from adaqn.experiments.commands.display import figure_bar, print_costs
from adaqn.experiments.commands.options import AsJson, DataDir, Workers
from adaqn.experiments.errors import UserError
from adaqn.experiments.study.driver import costs, measure, run_study
from adaqn.experiments.study.page import as_json_rows, write_page
from adaqn.experiments.study.plan import FILE, WHOLE, Plan, chosen, plan_file, whole_study
from adaqn.experiments.study.summary import Line, lines, mean_text, range_text
from adaqn.experiments.study.whole_page import as_whole_rows, write_whole_page
from adaqn.experiments.study.whole_summary import median_text, span_text, whole_lines
from adaqn.experiments.training.parallel import RunListener, check_workers
from adaqn.experiments.training.storage import json_text

WIDTH = 132
"""Of tables that go into a file or a pipe."""


def study(
    cell: Annotated[list[str] | None, typer.Option(help="Only this cell; may repeat.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this optimizer; may repeat.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Where the small files with results are kept.", show_default="experiments/study, or experiments/whole"
        ),
    ] = None,
    cells: Annotated[
        Path,
        typer.Option(
            help="The file that fixes the cells; 'whole' is that of the whole batches.", show_default="adaqn's own"
        ),
    ] = FILE,
    only_plan: Annotated[bool, typer.Option("--plan", help="Say what is missing and the hours, and stop.")] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Time a step of every method, side by side; runs nothing else.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write tables and figures there, and run nothing.")] = None,
    workers: Workers = 2,
    out: Annotated[Path, typer.Option(help="Where the runs themselves go; finished ones are reused.")] = Path(
        "runs/study"
    ),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Every optimizer on every cell: five step sizes each on seed 0, then three seeds at the best on validation."""
    check_workers(workers)
    if page is not None and (cell or method):
        raise UserError("a page shows the whole study: leave out --cell and --method")
    if time and method:
        raise UserError("times compare only side by side: leave out --method, so that all methods of a cell take turns")
    plan = chosen(whole_study(plan_file(cells)), cell or [], method or [])
    results = results or Path("experiments") / (WHOLE if plan.is_whole else "study")
    console = Console(quiet=as_json, width=None if sys.stdout.isatty() else WIDTH)
    if time:
        for c in plan.panels:
            said = measure(c, results, data_dir)
            console.print(f"{c.name}: " + ", ".join(f"{m} {t['median']}" for m, t in said["milliseconds"].items()))
    elif page is None:
        left = costs(plan, results, data_dir)
        print_costs(left, workers, console)
        if only_plan:
            if as_json:
                print(json_text([{**asdict(cost), "hours": cost.hours} for cost in left], indent=2))
            return

        def bars(label: str, total: int) -> AbstractContextManager[RunListener]:
            console.print(label, highlight=False)
            return figure_bar(total, quiet=as_json)

        for c in run_study(plan, results, out, workers, data_dir, bars):
            console.print(f"{c.name}: finished", highlight=False)
    if plan.is_whole:
        tell_whole(plan, results, page, console, as_json)
        return
    found = lines(plan, results)
    if page is not None:
        written = write_page(found, page, plan.seeds, None if cells == FILE else cells)
        console.print("written: " + ", ".join(str(path) for path in written), highlight=False, soft_wrap=True)
    if as_json:
        print(json_text(as_json_rows(found), indent=2))
    else:
        print_lines(found, console)


def tell_whole(plan: Plan, results: Path, page: Path | None, console: Console, as_json: bool) -> None:
    """The same for whole batches, where evaluations are counted and there is an error beside the loss."""
    found = whole_lines(plan, results)
    if page is not None:
        written = write_whole_page(found, page, plan.seeds)
        console.print("written: " + ", ".join(str(path) for path in written), highlight=False, soft_wrap=True)
    if as_json:
        print(json_text(as_whole_rows(found), indent=2))
        return
    table = Table("cell", "method", "lr", "loss", "range", "error", "ms", "loss in torch's seconds", "error then")
    for of_cell in found.values():
        for line in of_cell:
            table.add_row(
                line.panel.name, line.label, "–" if line.lr is None else f"{line.lr:g}", median_text(line.loss),
                span_text(line.loss), median_text(line.error),
                "–" if line.milliseconds is None else f"{line.milliseconds:.1f}", median_text(line.loss_in_time),
                median_text(line.error_in_time),
            )  # fmt: skip
    console.print(table)


def print_lines(found: dict[str, list[Line]], console: Console) -> None:
    table = Table("cell", "method", "lr", "test loss", "range", "averaged", "untuned", "ms a step", "s to Adam's end")
    for of_cell in found.values():
        for line in of_cell:
            table.add_row(
                line.panel.name, line.label, f"{line.lr:g}", mean_text(line.test), range_text(line.test),
                mean_text(line.averaged), mean_text(line.untuned),
                "–" if line.milliseconds is None else f"{line.milliseconds:.1f}",
                "–" if line.seconds_to_adam is None else f"{line.seconds_to_adam:.1f}",
            )  # fmt: skip
    console.print(table)
