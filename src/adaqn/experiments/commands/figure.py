"""``adaqn figure``: tune if asked to, estimate, run what is missing, draw."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from adaqn.experiments.commands.compare import parse_optimizers
from adaqn.experiments.commands.display import count_bars, figure_bar, print_costs
from adaqn.experiments.commands.options import AsJson, DataDir, Device, DtypeName, Threads, Workers
from adaqn.experiments.comparison import panels
from adaqn.experiments.comparison.panels import Comparison, Planned
from adaqn.experiments.comparison.plots import draw_comparison
from adaqn.experiments.comparison.summary import summary_rows
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.noise import draw_noise, noise_rows, noise_spec
from adaqn.experiments.figures.pinn import RIVALS, draw_pinn, pinn_spec
from adaqn.experiments.figures.specs import FIGURES, PLAIN, figure_spec
from adaqn.experiments.figures.tuning_file import key, packaged, search_panel, tuned_by
from adaqn.experiments.results.report import write_report
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import finished, folder_name
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import check_workers
from adaqn.experiments.training.storage import json_text, write_json
from adaqn.experiments.training.timing import Cost, cost_of
from adaqn.experiments.training.whole_settings import EVALUATIONS, PROBLEMS

PINN, NOISE = "pinn", "noise"


USUAL_STEPS = {PINN: EVALUATIONS, NOISE: 1_000}


def figure(
    name: Annotated[str, typer.Argument(help="One of: " + ", ".join((*FIGURES, PINN, NOISE)))],
    scale: Annotated[str, typer.Option(help="quick: minutes on two cores. paper: the paper's own setting.")] = "quick",
    seeds: Annotated[int, typer.Option(help="Runs of each curve, with seeds 0, 1, ...")] = 3,
    panel: Annotated[list[str] | None, typer.Option(help="Only panels with this in their title; may repeat.")] = None,
    optimizers: Annotated[str | None, typer.Option(help="Other curves than the paper's: names with commas.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Other than the scale's own.")] = None,
    problem: Annotated[str, typer.Option(help="Of pinn and noise: " + ", ".join(PROBLEMS["pinn"]))] = "burgers",
    steps: Annotated[
        int | None, typer.Option(help="Of pinn and noise: evaluations of each run; by default 2000, of noise 1000.")
    ] = None,
    dtype: Annotated[DtypeName, typer.Option(help="Of pinn and noise: precision of weights and points.")] = DtypeName[
        "float32"
    ],
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="First search step sizes on seed 0, the same budget for every curve, by validation loss."
        ),
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(help="File with tuned step sizes; by default the one that comes with adaqn.")
    ] = None,
    only_estimate: Annotated[
        bool, typer.Option("--estimate", help="Say how long it would take here, and stop.")
    ] = False,
    workers: Workers = 2,
    threads: Threads = 1,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Where runs and figures go; finished runs are reused.")] = Path(
        "runs/figures"
    ),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """One figure of the paper, or of a claim in its text: every curve a mean over seeds with its range.

    pinn is an equation: its solution, the error of the best network, and loss and error of all rivals. noise is the
    same equation with points that are drawn anew: the loss at the end by points per sample.
    """
    if name in (PINN, NOISE):
        refuse_for(name, scale != "quick" or bool(panel) or epochs is not None or tune or tuning is not None)
        base = RunConfig(
            task="pinn", problem=problem, steps=steps or USUAL_STEPS[name], dtype=dtype.value, schedule="cosine",
            threads=threads, device=device,
        )  # fmt: skip
        if name == NOISE:
            if optimizers:
                raise UserError("the curves of noise are fixed: leave out --optimizers")
            noise_figure(base, seeds, only_estimate, workers, out, data_dir, as_json)
            return
        pinn_figure(base, optimizers or RIVALS, seeds, only_estimate, workers, out, data_dir, as_json)
        return
    spec = panels.with_sizes(figure_spec(name, scale), epochs=epochs, threads=threads, device=device)
    if optimizers:
        spec = panels.with_optimizers(spec, PLAIN, [optimizer for optimizer, _ in parse_optimizers(optimizers)])
    if panel:
        spec = panels.with_panels(spec, panel)
    path = tuning or (out / f"tuning-{scale}.json" if tune else packaged(scale))
    check_workers(workers)
    asked = [f"--panel {shlex.quote(word)}" for word in panel or []]
    asked += [f"--optimizers {optimizers}"] if optimizers else []
    asked += [f"--epochs {epochs:g}"] if epochs else []
    if tune and spec.sweep is None:
        command = " ".join(["adaqn figure", name, "--scale", scale, "--tune", *asked])
        search(spec, path, command, out, workers, data_dir, quiet=as_json)
    if not path.exists() and scale == "paper":
        path = packaged("quick")
        say(f"no tuning was done at the paper's scale: step sizes are those of {path.name}", as_json)
    planned = panels.plan(spec, seeds, tuned_by(path))
    if only_estimate or scale == "paper":
        costs = estimate(planned, out, data_dir)
        if only_estimate and as_json:
            print(json_text([{**asdict(cost), "hours": cost.hours} for cost in costs], indent=2))
        if not as_json:
            print_costs(costs, workers, Console())
        if only_estimate:
            return
    with figure_bar(len(planned), quiet=as_json) as told:
        curves = panels.run_planned(planned, out, workers, data_dir, told)
    stem = out / f"{name}-{scale}{'-part' if asked else ''}"  # the whole figure stays as it was
    over = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    files = draw_comparison(spec, curves, stem, f"{scale} scale, {over}")
    rows = summary_rows(curves)
    write_json(stem.with_suffix(".json"), rows)
    if as_json:
        print(json_text({"rows": rows, "figures": [str(file) for file in files]}, indent=2))
        return
    print_rows(rows, spec)
    say("figures: " + ", ".join(str(file) for file in files), as_json)


def refuse_for(name: str, asked: bool) -> None:
    if asked:
        raise UserError(f"{name} has its own sizes: leave out --scale, --panel, --epochs, --tune and --tuning")


def pinn_figure(
    base: RunConfig, optimizers: str, seeds: int, only_estimate: bool, workers: int, out: Path, data_dir: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run what is missing, draw; step sizes are those that were given, or the optimizers' own."""
    spec = pinn_spec(base, parse_optimizers(optimizers))
    planned = panels.plan(spec, seeds)
    if only_estimate:
        print_costs(estimate(planned, out, data_dir), workers, Console(quiet=as_json))
        return
    with figure_bar(len(planned), quiet=as_json) as told:
        curves = panels.run_planned(planned, out, workers, data_dir, told)
    over = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    files = draw_pinn(spec, curves, out / spec.name, f"{over}; maps: the run with the smallest error")
    rows = summary_rows(curves)
    write_json((out / spec.name).with_suffix(".json"), rows)
    page = write_report(out)
    if as_json:
        print(json_text({"rows": rows, "figures": [str(file) for file in files], "report": str(page)}, indent=2))
        return
    table = Table(title=spec.title)
    for column in ("optimizer", "lr", "loss", "error", "seconds"):
        table.add_column(column, justify="left" if column == "optimizer" else "right")
    for row in sorted(
        rows, key=lambda row: (row["test_loss"]["mean"] != row["test_loss"]["mean"], row["test_loss"]["mean"])
    ):
        loss, error = (f"{row[key]['mean']:.2e}" for key in ("test_loss", "test_error"))
        table.add_row(row["curve"], f"{row['lr']:g}", loss, error, str(row["seconds"]))
    Console().print(table)
    say("figures: " + ", ".join(str(file) for file in files), as_json)
    say(f"report: {page}", as_json)


def noise_figure(
    base: RunConfig, seeds: int, only_estimate: bool, workers: int, out: Path, data_dir: Path | None, as_json: bool
) -> None:
    """Run what is missing, draw."""
    spec = noise_spec(base)
    planned = panels.plan(spec, seeds)
    if only_estimate:
        print_costs(estimate(planned, out, data_dir), workers, Console(quiet=as_json))
        return
    with figure_bar(len(planned), quiet=as_json) as told:
        rows = noise_rows(panels.run_planned(planned, out, workers, data_dir, told))
    over = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    files = draw_noise(spec, rows, out / spec.name, over)
    write_json((out / spec.name).with_suffix(".json"), rows)
    page = write_report(out)
    if as_json:
        print(json_text({"rows": rows, "figures": [str(file) for file in files], "report": str(page)}, indent=2))
        return
    table = Table(title=spec.title)
    for column in ("sample", "optimizer", "loss", "error", "noise"):
        table.add_column(column, justify="left" if column in ("sample", "optimizer") else "right")
    for row in rows:
        numbers = (f"{row[name]['mean']:.2e}" for name in ("test_loss", "test_error", "noise"))
        table.add_row(row["panel"], row["curve"], *numbers)
    Console().print(table)
    say("figures: " + ", ".join(str(file) for file in files), as_json)
    say(f"report: {page}", as_json)


def search(
    spec: Comparison, path: Path, command: str, out: Path, workers: int, data_dir: Path | None, *, quiet: bool
) -> None:
    """Tune every panel once."""
    panels = {key(panel): panel for panel in spec.panels}
    for panel in panels.values():
        names = [variant.name for variant in panel.variants]
        say(f"{panel.title}: {panel.budget} runs for each of {len(names)} curves, {workers} at a time", quiet)
        with count_bars(names, panel.budget, quiet=quiet) as told:
            search_panel(panel, path, command, out, workers, data_dir, told)


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


def print_rows(rows: list[dict[str, object]], spec: Comparison) -> None:
    """The table in the terminal: mean and range at the end."""
    table = Table(title=spec.title)
    for column in ("panel", "curve", "lr", "options", "test loss", "range", "valid loss", "stored/skipped/rejected"):
        table.add_column(column, justify="left" if column in ("panel", "curve", "options") else "right")
    for row in rows:
        test, valid, cycles = row["test_loss"], row["valid_loss"], row.get("cycles")
        assert isinstance(test, dict)
        assert isinstance(valid, dict)
        options = row["options"]
        assert isinstance(options, dict)
        table.add_row(
            str(row["panel"]), str(row["curve"]), f"{row['lr']:g}",
            ", ".join(f"{name}={value}" for name, value in options.items()) or "–",
            f"{test['mean']:.3f}", f"{test['low']:.3f} to {test['high']:.3f}", f"{valid['mean']:.3f}",
            "/".join(str(count) for count in cycles.values()) if isinstance(cycles, dict) else "–",
        )  # fmt: skip
    Console().print(table)


def say(line: str, quiet: bool) -> None:
    if not quiet:
        Console().print(line, highlight=False, markup=False, soft_wrap=True)
