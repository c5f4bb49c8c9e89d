"""``adaqn compare``: several optimizers on one task, with everything else equal."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaqn.experiments.commands.display import progress_bars, screen
from adaqn.experiments.commands.options import AsJson, DataDir, Workers, run_options
from adaqn.experiments.comparison.headline import Contender, headline
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant, View, plan, run_planned
from adaqn.experiments.comparison.plots import draw_comparison
from adaqn.experiments.comparison.summary import cycles_text, spread
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.results.report import write_report
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.options import check_schedule
from adaqn.experiments.training.storage import json_text, write_json
from adaqn.experiments.training.whole_settings import is_whole
from adaqn.explain.finding import size

RIVALS = "adaqn,adaqn-paper:0.00631,adagrad:0.01,adam:0.00398"
"""AdaQN as it comes; the others with the step sizes that nine runs each found for this network on other texts
(``figures/quick.json``: Dickens and Nietzsche, tanh)."""


@run_options("seed", epochs=3.0, evaluations=4)
def compare(
    base: RunConfig,
    optimizers: Annotated[
        str,
        typer.Option(
            help="Names, separated by commas; name:lr sets a step size instead of the optimizer's default. By default "
            "AdaQN runs at its untuned step size, the others at step sizes tuned for this network on two other texts.",
            show_default=RIVALS.replace(",", ", "),  # may be wrapped
        ),
    ] = RIVALS,
    seeds: Annotated[int, typer.Option(help="Runs per optimizer, with seeds 0, 1, ...")] = 1,
    workers: Workers = 2,
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and tables.")] = Path("runs/compare"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Several optimizers on one task, side by side: a table, figures and a report. Finished runs are reused."""
    if is_whole(base.task):
        base = replace(base, epochs=1.0, evaluations=1)  # the defaults here are for batches that change
    chosen = parse_optimizers(optimizers)
    check_schedule(base, [name for name, _ in chosen])
    comparison = one_panel(base, chosen)
    planned = plan(comparison, seeds)
    labels = [p.variant.optimizer + (f" seed {p.config.seed}" if seeds > 1 else "") for p in planned]
    with progress_bars(labels, quiet=as_json) as told:
        curves = run_planned(planned, out, workers, data_dir, told)
    figures = draw_comparison(comparison, curves, out / "curves")
    rows = summary(curves)
    said = headline([Contender(c.variant.optimizer, entry(c.variant.optimizer).label, c.runs) for c in curves])
    write_json(out / "summary.json", rows)
    page = write_report(out)
    if as_json:
        files = {"figures": [str(path) for path in figures], "report": str(page)}
        print(json_text({"headline": said, "rows": rows, **files}, indent=2))
        return
    loss = "loss" if is_whole(base.task) else "test loss"
    print_rows(rows, f"{base.task} on {base.problem or base.data}, {base.model}: {loss} in {rows[0]['unit']}", loss)
    for line in ("figures: " + ", ".join(str(path) for path in figures), f"report: {page}"):
        Console().print(line, highlight=False, markup=False, soft_wrap=True)
    if said is not None:
        Console().print(f"\n{said}", highlight=False, markup=False, style="bold", soft_wrap=True)


def print_rows(rows: list[dict[str, Any]], title: str, loss: str) -> None:
    """The table in the terminal."""
    columns = {
        "optimizer": "optimizer", "lr": "lr", loss: "test", "at the average": "averaged", "spread": "spread",
        "valid loss": "valid",
        "seconds": "seconds", "memory": "memory", "cycles": "cycles",
    }  # fmt: skip
    if all(row["seeds"] == 1 for row in rows):
        del columns["spread"]
    if all(row["averaged"] == "–" for row in rows):
        del columns["at the average"]
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="left" if name == "optimizer" else "right")
    for row in rows:
        table.add_row(*(str(row[key]) for key in columns.values()))
    screen().print(table)


def parse_optimizers(text: str, curves: Collection[str] = ()) -> list[tuple[str, float | None]]:
    """Names with commas between, each with an optional step size. Names of ``curves`` need not be optimizers.

    >>> parse_optimizers("adaqn:0.01,adam")
    [('adaqn', 0.01), ('adam', None)]
    """
    chosen = []
    for part in text.split(","):
        name, _, lr = part.strip().partition(":")
        if name not in curves:
            entry(name)
        try:
            chosen.append((name, float(lr) if lr else None))
        except ValueError:
            raise UserError(f"{part.strip()!r}: what follows the colon must be a step size") from None
        if chosen.count(chosen[-1]) > 1:
            raise UserError(f"{part.strip()!r} is given twice: --seeds runs an optimizer several times")
    return chosen


def one_panel(base: RunConfig, optimizers: list[tuple[str, float | None]]) -> Comparison:
    """Every optimizer with its step size, by epoch and by time."""
    variants = []
    for name, given in optimizers:
        lr = entry(name).lr if given is None else given
        variants.append(Variant(f"{name}:{lr!r}", name, f"{entry(name).label} (lr {lr!r})", lr=lr))
    panel = Panel("", base, tuple(variants))
    views = (View(), View(against="seconds"))
    return Comparison("compare", f"{base.task} · {base.problem or base.data} · {base.model}", (panel,), views)


def rounded(value: float) -> float:
    """Four decimals, or three digits where those would be none.

    >>> rounded(1.23456), rounded(0.0000123456)
    (1.2346, 1.23e-05)
    """
    return round(value, 4) if not abs(value) < 0.001 else float(f"{value:.3g}")


def _averaged(finals: list[dict[str, Any]]) -> float | str:
    """The mean test loss at the average of the weights, of those that have one."""
    losses = [final.get("averaged_test_loss") for final in finals]
    return "–" if None in losses else rounded(spread(losses)["mean"])


def summary(curves: list[Curve]) -> list[dict[str, Any]]:
    """One row per optimizer, best first: mean and spread over seeds of the final test loss."""
    rows = []
    for curve in curves:
        finals, first = [run.result["final"] for run in curve.runs], curve.runs[0].result
        test = spread([final["test_loss"] for final in finals])
        rows.append(
            {
                "optimizer": entry(curve.variant.optimizer).label,
                "lr": curve.variant.lr,
                "test": rounded(test["mean"]),
                "averaged": _averaged(finals),
                "spread": rounded(test["high"] - test["low"]) if len(finals) > 1 else "–",
                "valid": rounded(spread([final["valid_loss"] for final in finals])["mean"]),
                "seconds": round(statistics.fmean(run.result["seconds"] for run in curve.runs), 1),
                "memory": "–" if first.get("optimizer_bytes") is None else size(first["optimizer_bytes"]),
                "cycles": cycles_text(finals),
                "seeds": len(finals),
                "unit": first["unit"],
                "data_sha256": first["data_sha256"],
            }
        )
    return sorted(rows, key=lambda row: (row["test"] != row["test"], row["test"]))
