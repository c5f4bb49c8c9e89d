"""The figures of an equation, ``adaqn figure pinn`` and ``adaqn figure noise``: run what is missing, draw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from adaqn.experiments.commands.compare import parse_optimizers
from adaqn.experiments.commands.display import figure_bar, print_costs, say, screen
from adaqn.experiments.comparison import panels
from adaqn.experiments.comparison.panels import Comparison, Curve, Planned
from adaqn.experiments.comparison.summary import summary_rows
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.kept import kept_rows
from adaqn.experiments.figures.noise import ROWS as QUANTITIES
from adaqn.experiments.figures.noise import draw_noise, noise_rows, noise_spec
from adaqn.experiments.figures.pinn import draw_pinn, pinn_spec
from adaqn.experiments.results.report import write_report
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import finished, folder_name
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.storage import json_text, write_json
from adaqn.experiments.training.timing import Cost, cost_of


def pinn_figure(
    base: RunConfig, optimizers: str, seeds: int, only_estimate: bool, workers: int, out: Path, data_dir: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run what is missing, draw; step sizes are those that were given, or the optimizers' own."""
    spec = pinn_spec(base, parse_optimizers(optimizers))
    curves = run_or_estimate(spec, seeds, only_estimate, workers, out, data_dir, as_json)
    if curves is None:
        return
    rows = summary_rows(curves)
    files = draw_pinn(spec, curves, out / spec.name, f"{over(seeds)}; maps: the run with the smallest error")
    page = written(spec, rows, files, out, as_json)
    if as_json:
        return
    table = Table(title=spec.title)
    for column in ("optimizer", "lr", "loss", "error", "seconds"):
        table.add_column(column, justify="left" if column == "optimizer" else "right")
    for row in sorted(
        rows, key=lambda row: (row["test_loss"]["mean"] != row["test_loss"]["mean"], row["test_loss"]["mean"])
    ):
        loss, error = (f"{row[key]['mean']:.2e}" for key in ("test_loss", "test_error"))
        table.add_row(row["curve"], f"{row['lr']:g}", loss, error, str(row["seconds"]))
    screen().print(table)
    say("figures: " + ", ".join(str(file) for file in files), as_json)
    say(f"report: {page}", as_json)


def noise_figure(
    base: RunConfig, seeds: int, only_estimate: bool, workers: int, out: Path, data_dir: Path | None, as_json: bool
) -> None:
    """Run what is missing, draw."""
    spec = noise_spec(base)
    curves = run_or_estimate(spec, seeds, only_estimate, workers, out, data_dir, as_json)
    if curves is None:
        return
    rows = noise_rows(curves)
    files = draw_noise(spec, rows, out / spec.name, over(seeds))
    page = written(spec, rows, files, out, as_json)
    if not as_json:
        print_noise(spec, rows, files)
        say(f"report: {page}", as_json)


def noise_table(base: RunConfig, out: Path) -> Path:
    """Where the numbers of that figure lie."""
    return (out / noise_spec(base).name).with_suffix(".json")


def redraw_noise(base: RunConfig, out: Path, as_json: bool) -> None:
    """From the table that was written beside the picture, with as many evaluations as its runs had."""
    rows = kept_rows(noise_table(base, out))
    spec = noise_spec(replace(base, steps=rows[0]["steps"]))
    needed = ("points", "resample", *QUANTITIES)
    if any(name not in row for row in rows for name in needed):
        raise UserError(f"{noise_table(base, out)} is not of the figure of noise: its rows need {', '.join(needed)}")
    files = draw_noise(spec, rows, out / spec.name, over(rows[0]["seeds"]))
    if as_json:
        print(json_text({"rows": rows, "figures": [str(file) for file in files]}, indent=2))
        return
    print_noise(spec, rows, files)


def print_noise(spec: Comparison, rows: list[dict[str, Any]], files: list[Path]) -> None:
    """The table in the terminal."""
    table = Table(title=spec.title)
    for column in ("sample", "optimizer", "loss", "error", "noise"):
        table.add_column(column, justify="left" if column in ("sample", "optimizer") else "right")
    for row in rows:
        table.add_row(row["panel"], row["curve"], *(f"{row[name]['mean']:.2e}" for name in QUANTITIES))
    screen().print(table)
    say("figures: " + ", ".join(str(file) for file in files), False)


def run_or_estimate(
    spec: Comparison, seeds: int, only_estimate: bool, workers: int, out: Path, data_dir: Path | None, as_json: bool
) -> list[Curve] | None:
    """Run what is missing; ``None`` where only its cost was asked for, and printed."""
    planned = panels.plan(spec, seeds)
    if only_estimate:
        print_costs(estimate(planned, out, data_dir), workers, screen(quiet=as_json))
        return None
    with figure_bar(len(planned), quiet=as_json) as told:
        return panels.run_planned(planned, out, workers, data_dir, told)


def over(seeds: int) -> str:
    """What the curves are the mean of."""
    return f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"


def written(spec: Comparison, rows: list[dict[str, Any]], files: list[Path], out: Path, as_json: bool) -> Path:
    """The numbers of a figure and the report, as files; printed too where that was asked for."""
    write_json((out / spec.name).with_suffix(".json"), rows)
    page = write_report(out)
    if as_json:
        print(json_text({"rows": rows, "figures": [str(file) for file in files], "report": str(page)}, indent=2))
    return page


def estimate(planned: list[Planned], out: Path, data_dir: Path | None) -> list[Cost]:
    """One row per curve; finished runs cost nothing."""
    waiting: dict[tuple[str, str], list[Planned]] = {}
    for p in planned:
        of_curve = waiting.setdefault((p.panel.title, p.variant.label), [])
        if finished(out / "runs" / folder_name(p.config)) is None:
            of_curve.append(p)
    return [
        cost_of(*names, len(left), open_run(left[0].config, None, data_dir)) if left else Cost(*names, 0, 0.0)
        for names, left in waiting.items()
    ]
