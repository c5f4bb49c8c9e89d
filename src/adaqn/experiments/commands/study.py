"""``adaqn study``: say how long it takes, run what is missing, time the methods, write the page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from adaqn.experiments.commands.display import print_costs, screen
from adaqn.experiments.commands.options import AsJson, BudgetHours, DataDir, ManyWorkers
from adaqn.experiments.commands.working import run_what_fits, tell_end
from adaqn.experiments.errors import UserError
from adaqn.experiments.study.anytime import cells as anytime_cells
from adaqn.experiments.study.driver import StudyWork, all_times, costs, measure, missing
from adaqn.experiments.study.page import as_json_rows, write_page
from adaqn.experiments.study.plan import FILE, WHOLE, Plan, chosen, plan_file, whole_study, with_timed
from adaqn.experiments.study.summary import Found, lines, mean_text, range_text
from adaqn.experiments.study.whole_page import as_whole_rows, write_whole_page
from adaqn.experiments.study.whole_summary import median_text, span_text, whole_lines
from adaqn.experiments.training.parallel import check_workers, cores
from adaqn.experiments.training.storage import json_text


def study(
    task: Annotated[list[str] | None, typer.Option(help="Only this task of the study; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this optimizer; may be repeated.")] = None,
    regime: Annotated[
        list[str] | None, typer.Option(help="Only this regime, constant or cosine; may be repeated.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder for the small result files.", show_default="experiments/study, or experiments/whole"),
    ] = None,
    tasks: Annotated[
        Path,
        typer.Option(
            help="The file that lists the tasks; 'whole' is the one for full-batch training.",
            show_default="adaqn's own",
        ),
    ] = FILE,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Print what is missing and how many hours it takes, and exit.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Time a step of every method, side by side; run nothing else.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write tables and figures to this page, and run nothing.")] = None,
    budget_hours: BudgetHours = None,
    workers: ManyWorkers = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs; finished ones are reused.")] = Path("runs/study"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
    cell: Annotated[list[str] | None, typer.Option(hidden=True, help="The old name of --task.")] = None,
    cells: Annotated[Path | None, typer.Option(hidden=True, help="The old name of --tasks.")] = None,
) -> None:
    """Run every optimizer on every task, without and with a schedule: five step sizes on seed 0, then three seeds.

    A method's row in the table is the better of the two by validation loss.
    """
    count = check_workers(cores() if workers is None else workers)
    named, tasks = [*(task or []), *(cell or [])], cells or tasks
    if page is not None and (named or method or regime):
        raise UserError("a page shows the whole study: leave out --task, --method and --regime")
    if time and (method or regime):
        raise UserError("times compare only side by side: leave out --method and --regime, so that all take turns")
    plan = chosen(whole_study(plan_file(tasks)), named, method or [], regime or [])
    results = results or Path("experiments") / (WHOLE if plan.is_whole else "study")
    console = screen(quiet=as_json)
    if time:
        for c in with_timed(plan):
            said = measure(c, results, data_dir, plan.timed)
            console.print(f"{c.name}: " + ", ".join(f"{m} {t['median']}" for m, t in said["milliseconds"].items()))
    elif only_plan:
        left = costs(plan.in_order(), results, data_dir)
        if as_json:
            print(json_text([{**asdict(cost), "hours": cost.hours} for cost in left], indent=2))
        print_costs(left, count, console)
        return
    elif page is None:
        work = StudyWork(plan.in_order(), results, out / "runs", data_dir)
        outcome = run_what_fits(work, count, data_dir, budget_hours, quiet=as_json)
        work.due()  # what was finished last goes into the files
        tell(plan, results, None, tasks, console, as_json)
        tell_end(outcome, work, quiet=as_json)
        return
    tell(plan, results, page, tasks, console, as_json)


def tell(plan: Plan, results: Path, page: Path | None, tasks: Path, console: Console, as_json: bool) -> None:
    """What is missing, and the rows that are complete, as a table and as a page."""
    for line in missing(plan, results):
        console.print(f"missing: {line}", highlight=False, markup=False)
    if plan.is_whole:
        tell_whole(plan, results, page, console, as_json)
        return
    found = lines(plan, results)
    if page is not None:
        later = anytime_cells(plan, found, results)
        times = all_times(plan, results)
        written = write_page(found, later, times, plan, page, None if tasks == FILE else tasks)
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
    table = Table("task", "method", "lr", "loss", "range", "error", "ms", "loss in torch's seconds", "error then")
    for of_task in found.values():
        for line in of_task:
            table.add_row(
                line.panel.name, line.label, "–" if line.lr is None else f"{line.lr:g}", median_text(line.loss),
                span_text(line.loss), median_text(line.error),
                "–" if line.milliseconds is None else f"{line.milliseconds:.1f}", median_text(line.loss_in_time),
                median_text(line.error_in_time),
            )  # fmt: skip
    console.print(table)


def print_lines(found: Found, console: Console) -> None:
    table = Table("task", "method", "regime", "lr", "test loss", "range", "untuned", "ms per step", "s to AdamW's end")
    for methods in found.values():
        for regimes in methods:
            for line in regimes:
                table.add_row(
                    line.panel.name, line.label, line.regime, f"{line.lr:g}",
                    f"[bold]{mean_text(line.test)}[/bold]" if line is regimes[0] else mean_text(line.test),
                    range_text(line.test), mean_text(line.untuned),
                    "–" if line.milliseconds is None else f"{line.milliseconds:.1f}",
                    "–" if line.seconds_to_goal is None else f"{line.seconds_to_goal:.1f}",
                )  # fmt: skip
    console.print(table)
