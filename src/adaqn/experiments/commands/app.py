"""The commands of the laboratory."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaqn.experiments.commands.compare import compare_optimizers, parse_optimizers, summary
from adaqn.experiments.commands.data import data_app
from adaqn.experiments.commands.display import count_bars, progress_bars
from adaqn.experiments.commands.doctor import examine
from adaqn.experiments.commands.explain import explain
from adaqn.experiments.commands.figure import figure
from adaqn.experiments.commands.options import AsJson, DataDir, Device, Threads, Workers, run_options
from adaqn.experiments.commands.sample import sample as draw_text
from adaqn.experiments.commands.study import study
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.results.report import write_report
from adaqn.experiments.search import tune as tuning
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, folder_name, stored_config
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.storage import json_text, write_json
from adaqn.experiments.training.team import check_command, restarts, team

app = typer.Typer(
    help="Quasi-Newton training of neural networks: the experiments of the adaQN paper, each by one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")


@app.command()
@run_options()
def train(
    context: typer.Context,
    base: RunConfig,
    optimizer: Annotated[str, typer.Option(help="One of: " + ", ".join(TABLE))] = "adaqn",
    lr: Annotated[float | None, typer.Option(help="Step size; by default the optimizer's own.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="More options, name=value; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default one below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where it was left.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train one model with one optimizer. Killed at any moment, --resume continues with the same bits.

    Under torchrun each process takes its share of every batch.
    """
    given = replace(base, optimizer=optimizer, lr=lr, options=parse_options(option))
    folder = out or Path("runs") / folder_name(given)
    if resume or (restarts() and (folder / CONFIG).exists()):
        if not (folder / CONFIG).exists():
            raise UserError(f"there is no run in {folder} to resume")
        stored = stored_config(folder)
        refuse_changes(context, given, stored, folder)
        given = stored
    elif (folder / CONFIG).exists():
        raise UserError(f"{folder} already holds a run: --resume continues it, or choose another folder with --out")
    with (
        team(given.device) as processes,
        progress_bars([given.optimizer], quiet=as_json or not processes.writes) as told,
    ):
        done = run_one(given, folder, data_dir, lambda progress: told(0, progress), processes)
    if not processes.writes:
        return
    if as_json:
        print(json_text({"folder": str(folder), **done.result}, indent=2))
        return
    final = done.result["final"]
    Console().print(
        f"{given.optimizer}: test loss {final['test_loss']:.4f} {done.result['unit']} after {done.result['steps']} "
        f"steps and {done.result['seconds']:.1f} s; everything is in {folder}",
        highlight=False, markup=False,
    )  # fmt: skip


@app.command()
@run_options("seed", epochs=4.0, evaluations=4)
def compare(
    base: RunConfig,
    optimizers: Annotated[str, typer.Option(help="Names with commas between; name:lr sets a step size.")] = (
        "adaqn:0.00533,adaqn-paper:0.00631,adagrad:0.00631,adam:0.00398"
    ),
    seeds: Annotated[int, typer.Option(help="Runs of each, with seeds 0, 1, ...")] = 1,
    workers: Workers = 2,
    out: Annotated[Path, typer.Option(help="Where runs, figures and tables go.")] = Path("runs/compare"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Several optimizers on one task, side by side: a table, figures and a report. Finished runs are reused."""
    groups, figures = compare_optimizers(base, optimizers, seeds, out, workers, data_dir, quiet=as_json)
    page = write_report(out)
    rows = summary(groups)
    if as_json:
        print(json_text({"rows": rows, "figures": [str(path) for path in figures], "report": str(page)}, indent=2))
        return
    table = Table(title=f"{base.task} on {base.data}, {base.model}: test loss in {rows[0]['unit']}")
    for name in ("optimizer", "lr", "test loss", "spread", "valid loss", "seconds", "stored / skipped / rejected"):
        table.add_column(name, justify="left" if name == "optimizer" else "right")
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("optimizer", "lr", "test", "spread", "valid", "seconds", "cycles")))
    Console().print(table)
    for line in ("figures: " + ", ".join(str(path) for path in figures), f"report: {page}"):
        Console().print(line, highlight=False, markup=False, soft_wrap=True)


@app.command()
@run_options()
def tune(
    base: RunConfig,
    optimizers: Annotated[str, typer.Option(help="Names with commas between.")] = "adaqn,adagrad,adam",
    budget: Annotated[int, typer.Option(help="Runs of each optimizer, the same for all.")] = 20,
    search: Annotated[
        str,
        typer.Option(
            help="grid: every step size with every L or betas, so the budget is a multiple of 4. staged: step sizes "
            "first, then L or betas at the best of them. lr: step sizes alone."
        ),
    ] = "grid",
    workers: Annotated[int, typer.Option(help="Processes; more may join from other terminals or machines.")] = 2,
    storage: Annotated[str | None, typer.Option(help="Optuna's URL of a database; by default SQLite in --out.")] = None,
    name: Annotated[str, typer.Option(help="Of the study in the database.")] = "tuning",
    out: Annotated[Path, typer.Option(help="Where runs and the database go.")] = Path("runs/tune"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """The paper's grid search: step sizes for all, L for adaQN, betas for Adam; the same budget for each, resumable."""
    names = [optimizer for optimizer, lr in parse_optimizers(optimizers) if lr is None]
    if len(names) < len(optimizers.split(",")):
        raise UserError(f"the search chooses the step sizes: give names alone, not {optimizers!r}")
    if not as_json:
        print(f"{budget} runs for each of {', '.join(names)}: {budget * len(names)} in all, {workers} at a time")
    with count_bars(names, budget, quiet=as_json) as told:
        found = tuning.tune(
            tuning.for_optimizers(base, names), budget, out, search=search, url=storage, name=name, workers=workers,
            data_dir=data_dir, told=told,
        )  # fmt: skip
    write_json(out / "tuned.json", found)
    if as_json:
        print(json_text(found, indent=2))
        return
    table = Table("optimizer", "best lr", "with", "validation loss", "runs")
    for optimizer, entry in found.items():
        best = dict(entry["best"])
        loss, lr = best.pop("valid_loss"), best.pop("lr")
        others = ", ".join(f"{key}={value}" for key, value in best.items()) or "–"
        table.add_row(optimizer, f"{lr:.4g}", others, f"{loss:.4f}", str(len(entry["trials"])))
    Console().print(table)


app.command()(figure)
app.command()(study)
app.command()(explain)


@app.command()
def sample(
    folder: Annotated[Path, typer.Argument(help="Folder of a run of char-lm or word-lm.")],
    count: Annotated[int, typer.Option(help="Symbols to draw.")] = 400,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 bolder.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Text generated from a trained language model."""
    text = draw_text(
        folder, count, prompt=prompt, temperature=temperature, seed=seed, data_dir=data_dir, threads=threads,
        device=device,
    )  # fmt: skip
    print(json_text({"folder": str(folder), "seed": seed, "text": text}, indent=2) if as_json else text)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder with runs in it, at any depth.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in that folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """One HTML page about all runs below a folder: curves, memory, verdicts, results. It works offline."""
    path = write_report(folder, out)
    print(json_text({"report": str(path)}) if as_json else f"report: {path}")


@app.command()
def doctor(
    model: Annotated[str | None, typer.Argument(help="A task, or module:function that returns a model.")] = None,
    threads: Threads = 2,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What is installed, which data is there, how fast this machine is, and what adaQN costs for a model."""
    found = examine(model, threads, data_dir, device)
    if as_json:
        print(json_text(found, indent=2))
        return
    print(
        f"Python {found['python']} on {found['machine']}; {found['device']} reads {found['read_gb_per_second']} GB/s "
        f"({threads} threads)"
    )
    print("installed: " + ", ".join(f"{name} {version or '–'}" for name, version in found["packages"].items()))
    print("data: " + ", ".join(f"{name} {'here' if here else 'not here'}" for name, here in found["data"].items()))
    if "model" in found:
        table = Table("setting", "memory", "ms per step", title=f"{model}: {found['model']['parameters']:,} parameters")
        for name, cost in found["model"]["settings"].items():
            table.add_row(name, f"{cost['bytes'] / 1e6:,.1f} MB", f"{1e3 * cost['seconds_per_step']:.2f}")
        Console().print(table)


def refuse_changes(context: typer.Context, given: RunConfig, stored: RunConfig, folder: Path) -> None:
    """A resumed run is the run that it was; what contradicts it on the command line is told."""
    if given.options:  # as written out: a preset may say the same
        given = replace(given, options=resolved(replace(stored, options=given.options)).options)
    for name in (field.name for field in fields(RunConfig)):
        asked = "option" if name == "options" else name
        source = context.get_parameter_source(asked)
        if source is not None and source.name == "COMMANDLINE" and getattr(given, name) != getattr(stored, name):
            raise UserError(
                f"the run in {folder} has {name} = {getattr(stored, name)!r}, not {getattr(given, name)!r}: a resumed "
                "run cannot be changed; start another with --out"
            )


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """name=value pairs; values are JSON where they can be, text otherwise.

    >>> parse_options(["cycle_length=10", "scaling=adam"])
    {'cycle_length': 10, 'scaling': 'adam'}
    """
    options = {}
    for item in given or []:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise UserError(f"an option is written name=value, got {item!r}")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def run() -> None:
    """Mistakes of the user are one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        check_command(sys.argv[1:])
        app()
    except UserError as error:
        print(f"adaqn: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:  # typer makes the first into the second, without a word
        if isinstance(end, SystemExit) and end.code != 130:
            raise
        again = "'adaqn train --resume --out FOLDER'" if sys.argv[1:2] == ["train"] else "the same command"
        print(f"adaqn: interrupted; what was done so far is saved, and {again} goes on", file=sys.stderr)
        sys.exit(130)
