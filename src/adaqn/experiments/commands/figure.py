"""``adaqn figure``: search step sizes where none are known, run what fits into the budget, keep the results, draw."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adaqn.experiments.commands.compare import parse_optimizers
from adaqn.experiments.commands.display import print_costs, say, screen, timed
from adaqn.experiments.commands.figure_pictures import draw_kept, draw_table, home
from adaqn.experiments.commands.options import AsJson, BudgetHours, DataDir, Device, DtypeName, ManyWorkers, Threads
from adaqn.experiments.commands.physics_figure import noise_figure, pinn_figure, redraw_noise
from adaqn.experiments.commands.working import run_what_fits, tell_end
from adaqn.experiments.comparison import panels
from adaqn.experiments.comparison.panels import Comparison
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.kept import keep
from adaqn.experiments.figures.pinn import RIVALS
from adaqn.experiments.figures.specs import FIGURES, figure_spec
from adaqn.experiments.figures.tuning_file import packaged, tuned_by, write_tuning
from adaqn.experiments.figures.work import FigureWork, costs
from adaqn.experiments.reading import is_there
from adaqn.experiments.search.tune import CurveSearch
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import check_workers, cores
from adaqn.experiments.training.storage import json_text
from adaqn.experiments.training.whole_settings import EVALUATIONS, PROBLEMS

PINN, NOISE, ALL = "pinn", "noise", "all"
KEPT = Path("experiments/paper")
"""The results at the paper's scale are committed."""
USUAL_SEEDS = 3
USUAL_STEPS = {PINN: EVALUATIONS, NOISE: 1_000}


def figure(
    name: Annotated[str, typer.Argument(help="One of: " + ", ".join((*FIGURES, PINN, NOISE)))],
    scale: Annotated[str, typer.Option(help="quick: minutes on two cores. paper: the paper's own setting.")] = "quick",
    seeds: Annotated[int, typer.Option(help="Runs of each curve, with seeds 0, 1, ...")] = USUAL_SEEDS,
    panel: Annotated[
        list[str] | None, typer.Option(help="Only panels whose title or name has this; may be repeated.")
    ] = None,
    optimizers: Annotated[
        str | None, typer.Option(help="Curves of the figure or other optimizers, separated by commas.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Number of epochs instead of the scale's own.")] = None,
    problem: Annotated[str, typer.Option(help="For pinn and noise: " + ", ".join(PROBLEMS["pinn"]))] = "burgers",
    steps: Annotated[
        int | None, typer.Option(help="For pinn and noise: evaluations per run; by default 2000 and 1000.")
    ] = None,
    dtype: Annotated[DtypeName, typer.Option(help="For pinn and noise: precision of weights and points.")] = DtypeName[
        "float32"
    ],
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First search step sizes on seed 0, by validation loss, with the same budget for every curve. At the "
            "paper's scale this is the default.",
        ),
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(help="File with tuned step sizes, or 'quick'; by default that of the scale.")
    ] = None,
    only_plan: Annotated[
        bool, typer.Option("--plan", "--estimate", help="Print how long it would take here, and exit.")
    ] = False,
    budget_hours: BudgetHours = None,
    redraw: Annotated[
        bool,
        typer.Option(
            "--redraw",
            help="Run nothing: draw from stored results, sweeps of step sizes and noise also from the table in --out. "
            "'all' draws every figure.",
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the small result files.",
            show_default=f"{KEPT} at the paper's scale with its own settings, else a folder in --out",
        ),
    ] = None,
    workers: ManyWorkers = None,
    threads: Threads = 1,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for runs and figures; finished runs are reused.")] = Path(
        "runs/figures"
    ),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw one figure of the paper, or of a claim in its text. Every curve is a mean over seeds with its range.

    After a kill the same command continues. Several machines may share one --out folder.

    pinn shows an equation: its solution, the error of the best network, and loss and error of all optimizers.

    noise shows the same equation with resampled points: the final loss by points per sample.
    """
    count = check_workers(cores() if workers is None else workers)
    if name in (PINN, NOISE):
        own = scale != "quick" or bool(panel) or epochs is not None or tune or tuning is not None
        refuse_for(name, own or budget_hours is not None or (redraw and name == PINN) or results is not None)
        base = RunConfig(
            task="pinn", problem=problem, steps=steps or USUAL_STEPS[name], dtype=dtype.value, schedule="cosine",
            threads=threads, device=device,
        )  # fmt: skip
        if name == NOISE:
            if optimizers:
                raise UserError("the curves of noise are fixed: leave out --optimizers")
            if redraw:
                redraw_noise(base, out, as_json)
                return
            noise_figure(base, seeds, only_plan, count, out, data_dir, as_json)
            return
        pinn_figure(base, optimizers or RIVALS, seeds, only_plan, count, out, data_dir, as_json)
        return
    if steps is not None or dtype.value != "float32" or problem != "burgers":
        raise UserError(f"--steps, --dtype and --problem are for {PINN} and {NOISE}: leave them out for {name}")
    if name == "family" and scale != "quick":
        raise UserError("family has one size: leave out --scale")
    kept = results or usual_folder(out, scale, epochs, tuning)
    asked = [f"--panel {shlex.quote(word)}" for word in panel or []]
    asked += [f"--optimizers {optimizers}"] if optimizers else []
    asked += [f"--epochs {epochs:g}"] if epochs else []
    made_by = [*(["--tune"] if tune else []), *([f"--tuning {shlex.quote(str(tuning))}"] if tuning else []), *asked]
    made_by += [f"--seeds {seeds}"] if seeds != USUAL_SEEDS else []

    every = [figure_spec(figure_name, scale) for figure_name in (FIGURES if name == ALL else (name,))]
    if panel and (unknown := panels.unknown_panels(every, panel)):
        raise panels.no_panel(every, unknown)

    def asked_of(whole: Comparison) -> Comparison:
        spec = panels.with_sizes(whole, epochs=epochs, threads=threads, device=device)
        if optimizers:
            spec = panels.with_optimizers(spec, curves_of(optimizers, spec))
        return panels.with_panels(spec, panel) if panel else spec

    def stem(name: str) -> Path:
        return out / f"{name}-{scale}{'-part' if asked else ''}"  # the whole figure stays as it was

    if redraw and (only_plan or budget_hours is not None or tune or tuning is not None or seeds != USUAL_SEEDS):
        raise UserError("--redraw runs nothing: leave out --plan, --budget-hours, --tune, --tuning and --seeds")
    if redraw:
        drawn, needed = False, name != ALL
        for whole in every:
            try:
                spec, place = asked_of(whole), stem(whole.name)
            except UserError:
                if needed:
                    raise
                continue  # it has no such panel, or no such curve
            drawn |= draw_table(spec, kept, place, scale, as_json) or draw_kept(
                spec, kept, place, scale, as_json, needed=needed
            )
        if not drawn:
            raise UserError(f"there are no results to draw in {kept}: give their folder with --results")
        return
    if name == ALL:
        raise UserError("'all' goes with --redraw: run the figures one by one")
    spec = asked_of(every[0])
    path = packaged("quick") if str(tuning) == "quick" else tuning
    strict = scale == "quick"  # at the paper's scale step sizes are searched, unless a file has them
    tuned = tuned_by(path or packaged(scale), strict=strict, any_size=strict or path is not None)
    known = None if tune and spec.sweep is None else tuned
    searched = None if results else KEPT / home(spec)  # who gives another folder repeats searches too
    work = FigureWork(spec, seeds, out / "runs", data_dir, known, kept / home(spec), searched)
    if kept == KEPT and not is_there(kept):
        say(f"no earlier results: there is no {kept} in this folder", as_json)
    if only_plan:
        found = timed(costs(work, data_dir), len(work.curves), quiet=as_json)
        if as_json:
            print(json_text([{**asdict(cost), "hours": cost.hours} for cost in found], indent=2))
        else:
            print_costs(found, count, screen())
        return
    command = " ".join(["adaqn figure", name, "--scale", scale, *made_by])
    found_here = path if path and tune else out / f"tuning-{scale}.json"

    def keep_what_there_is() -> list[str]:
        return keep_all(work, kept, command, found_here)

    outcome = run_what_fits(work, count, data_dir, budget_hours, quiet=as_json, keep=keep_what_there_is)
    for curve in keep_what_there_is():
        say(
            f"{curve}: {kept} has longer runs with other settings, which are kept and drawn; give another --results to "
            "see these",
            as_json,
        )
    draw_kept(spec, kept, stem(name), scale, as_json, needed=False)
    tell_end(outcome, work, quiet=as_json)


def curves_of(optimizers: str, spec: Comparison) -> list[str]:
    """Names of its own curves, or of optimizers."""
    own = [variant.name for panel in spec.panels for variant in panel.variants]
    chosen = parse_optimizers(optimizers, own)
    for name, lr in chosen:
        if lr is not None:
            raise UserError(f"{name}:{lr:g}: this figure takes tuned step sizes; leave out ':{lr:g}'")
    return [name for name, _ in chosen]


def refuse_for(name: str, asked: bool) -> None:
    if asked:
        raise UserError(
            f"{name} has its own sizes: leave out --scale, --panel, --epochs, --tune, --tuning, --budget-hours"
            f"{', --redraw' if name == PINN else ''} and --results"
        )


def usual_folder(out: Path, scale: str, epochs: float | None, tuning: Path | None) -> Path:
    """Of the small files: one for each size of the runs, so that a short try is not in the way of the real ones."""
    if scale == "paper" and epochs is None and tuning is None:
        return KEPT
    return out / "kept" / (scale if epochs is None else f"{scale}-{epochs:g}-epochs")


def keep_all(work: FigureWork, folder: Path, command: str, tuning: Path) -> list[str]:
    """The results of every panel, and the step sizes that were found for its curves; what is not kept, for a reader."""
    left_out = []
    for panel in work.spec.panels:
        curves = [curve for curve in work.curves if curve.panel.cell == panel.cell]
        searched = {curve.variant.name: curve.known for curve in curves if isinstance(curve.known, CurveSearch)}
        over = {name: search for name, search in searched.items() if search.is_over()}
        if over:
            write_tuning(tuning, panel, over, command)
        found = {name: search.results() for name, search in searched.items()}
        shorter = keep(panel, [curve.curve() for curve in curves], folder / home(work.spec), command, found)
        left_out += [f"{panel.title}, {label}" for label in shorter]
    return left_out
