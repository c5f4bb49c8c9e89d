"""The commands of the laboratory."""

from __future__ import annotations

import hashlib
import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaqn.experiments import tune as tuning
from adaqn.experiments.compare import compare_optimizers, parse_optimizers, summary
from adaqn.experiments.config import TASKS, RunConfig
from adaqn.experiments.data import files
from adaqn.experiments.display import count_bars, progress_bars
from adaqn.experiments.doctor import examine
from adaqn.experiments.errors import UserError
from adaqn.experiments.models import CELLS
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.report import write_report
from adaqn.experiments.runner import folder_name, run_one
from adaqn.experiments.sample import sample as draw_text
from adaqn.experiments.storage import read_json, write_json
from adaqn.experiments.training import CONFIG

app = typer.Typer(
    help="Quasi-Newton training of neural networks: the experiments of the adaQN paper, each by one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="The data sets: what is there, what can be fetched, whether it is intact.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

TaskName = Enum("TaskName", {name: name for name in TASKS}, type=str)  # type: ignore[misc]
ModelName = Enum("ModelName", {name: name for name in CELLS}, type=str)  # type: ignore[misc]

DataDir = Annotated[Path | None, typer.Option(help="Folder with data files already there; also ADAQN_DATA.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
TaskOption = Annotated[TaskName, typer.Option(help="What is learnt.")]
DataOption = Annotated[str, typer.Option(help="embedded, dickens, nietzsche, ptb, mnist, or the path of a text file.")]
ModelOption = Annotated[ModelName, typer.Option(help="The kind of cell.")]
Seed = Annotated[int, typer.Option(help="Of weights and batches.")]
Epochs = Annotated[float, typer.Option(help="Passes over the training split.")]
Steps = Annotated[int | None, typer.Option(help="Steps instead of epochs.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step; by default the task's own.")]
Layers = Annotated[int | None, typer.Option(help="Layers; by default the paper's.")]
Hidden = Annotated[int | None, typer.Option(help="Units per layer; by default the paper's.")]
Length = Annotated[int | None, typer.Option(help="Symbols per sequence, or steps of the addition problem.")]
Side = Annotated[int | None, typer.Option(help="Shrink the images to this side.")]
Limit = Annotated[int | None, typer.Option(help="Use only the first so many symbols or training examples.")]
Spread = Annotated[str, typer.Option(help="N(0, 0.01) read as its 'variance' or as its 'std'.")]
CarryState = Annotated[bool, typer.Option("--carry-state", help="Carry the hidden state through contiguous text.")]
Clip = Annotated[float | None, typer.Option(help="Largest norm of the gradient.")]
Evaluations = Annotated[int, typer.Option(help="Evaluations per epoch.")]
Threads = Annotated[int, typer.Option(help="Threads of each run.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]


@app.command()
def train(
    optimizer: Annotated[str, typer.Option(help="One of: " + ", ".join(TABLE))] = "adaqn",
    lr: Annotated[float | None, typer.Option(help="Step size; by default the optimizer's own.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="More options, name=value; may be repeated.")] = None,
    task: TaskOption = TaskName["char-lm"],
    data: DataOption = "embedded",
    model: ModelOption = ModelName["tanh"],
    seed: Seed = 0,
    epochs: Epochs = 1.0,
    steps: Steps = None,
    batch_size: BatchSize = None,
    layers: Layers = None,
    hidden: Hidden = None,
    length: Length = None,
    side: Side = None,
    limit: Limit = None,
    spread: Spread = "variance",
    carry_state: CarryState = False,
    clip: Clip = None,
    evaluations: Evaluations = 1,
    threads: Threads = 1,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default one below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where it was left.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train one model with one optimizer. Killed at any moment, --resume continues with the same bits."""
    given = RunConfig(
        task.value, data, model.value, layers, hidden, optimizer, lr, parse_options(option), seed, epochs, steps,
        batch_size, length, side, limit, spread, carry_state, clip, evaluations=evaluations, threads=threads,
        device=device,
    )  # fmt: skip
    folder = out or Path("runs") / folder_name(given)
    if resume:
        if not (folder / CONFIG).exists():
            raise UserError(f"there is no run in {folder} to resume")
        given = RunConfig.from_json(read_json(folder / CONFIG)["run"])
    elif (folder / CONFIG).exists():
        raise UserError(f"{folder} already holds a run: --resume continues it, or choose another folder with --out")
    with progress_bars([given.optimizer], quiet=as_json) as told:
        done = run_one(given, folder, data_dir, lambda progress: told(0, progress))
    if as_json:
        print(json.dumps({"folder": str(folder), **done.result}, indent=2))
        return
    final = done.result["final"]
    Console().print(
        f"{given.optimizer}: test loss {final['test_loss']:.4f} {done.result['unit']} after {done.result['steps']} "
        f"steps and {done.result['seconds']:.1f} s; everything is in {folder}",
        highlight=False, markup=False,
    )  # fmt: skip


@app.command()
def compare(
    optimizers: Annotated[str, typer.Option(help="Names with commas between; name:lr sets a step size.")] = (
        "adaqn:0.005,adagrad:0.02,adam:0.004"
    ),
    seeds: Annotated[int, typer.Option(help="Runs of each, with seeds 0, 1, ...")] = 1,
    task: TaskOption = TaskName["char-lm"],
    data: DataOption = "embedded",
    model: ModelOption = ModelName["tanh"],
    epochs: Epochs = 4.0,
    steps: Steps = None,
    batch_size: BatchSize = None,
    layers: Layers = 3,
    hidden: Hidden = None,
    length: Length = None,
    side: Side = None,
    limit: Limit = None,
    spread: Spread = "variance",
    carry_state: CarryState = False,
    clip: Clip = None,
    evaluations: Evaluations = 4,
    threads: Threads = 1,
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    out: Annotated[Path, typer.Option(help="Where runs, figures and tables go.")] = Path("runs/compare"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Several optimizers on one task, side by side: a table, figures and a report. Finished runs are reused."""
    base = RunConfig(
        task.value, data, model.value, layers, hidden, epochs=epochs, steps=steps, batch_size=batch_size, length=length,
        side=side, limit=limit, spread=spread, carry_state=carry_state, clip=clip, evaluations=evaluations,
        threads=threads, device=device,
    )  # fmt: skip
    groups, figures = compare_optimizers(base, optimizers, seeds, out, workers, data_dir, quiet=as_json)
    page = write_report(out)
    rows = summary(groups)
    if as_json:
        print(json.dumps({"rows": rows, "figures": [str(path) for path in figures], "report": str(page)}, indent=2))
        return
    table = Table(title=f"{task.value} on {data}, {model.value}: test loss in {rows[0]['unit']}")
    for name in ("optimizer", "lr", "test loss", "spread", "valid loss", "seconds", "stored / skipped / rejected"):
        table.add_column(name, justify="left" if name == "optimizer" else "right")
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("optimizer", "lr", "test", "spread", "valid", "seconds", "cycles")))
    Console().print(table)
    Console().print(
        "figures: " + ", ".join(str(path) for path in figures), highlight=False, markup=False, soft_wrap=True
    )


@app.command()
def tune(
    optimizers: Annotated[str, typer.Option(help="Names with commas between.")] = "adaqn,adagrad,adam",
    budget: Annotated[
        int, typer.Option(help="Runs of each optimizer: a multiple of 4, the choices of L and of betas.")
    ] = 20,
    task: TaskOption = TaskName["char-lm"],
    data: DataOption = "embedded",
    model: ModelOption = ModelName["tanh"],
    seed: Seed = 0,
    epochs: Epochs = 1.0,
    steps: Steps = None,
    batch_size: BatchSize = None,
    layers: Layers = None,
    hidden: Hidden = None,
    length: Length = None,
    side: Side = None,
    limit: Limit = None,
    spread: Spread = "variance",
    clip: Clip = None,
    threads: Threads = 1,
    workers: Annotated[int, typer.Option(help="Processes; more may join from other terminals or machines.")] = 2,
    storage: Annotated[str | None, typer.Option(help="Optuna's URL of a database; by default SQLite in --out.")] = None,
    name: Annotated[str, typer.Option(help="Of the study in the database.")] = "tuning",
    out: Annotated[Path, typer.Option(help="Where runs and the database go.")] = Path("runs/tune"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """The paper's grid search: step sizes for all, L for adaQN, betas for Adam; the same budget for each, resumable."""
    base = RunConfig(
        task.value, data, model.value, layers, hidden, seed=seed, epochs=epochs, steps=steps, batch_size=batch_size,
        length=length, side=side, limit=limit, spread=spread, clip=clip, threads=threads,
    )  # fmt: skip
    names = [optimizer for optimizer, _ in parse_optimizers(optimizers)]
    if not as_json:
        print(f"{budget} runs for each of {', '.join(names)}: {budget * len(names)} in all, {workers} at a time")
    with count_bars(names, budget, quiet=as_json) as told:
        found = tuning.tune(
            base, names, budget, out, url=storage, name=name, workers=workers, data_dir=data_dir, told=told
        )
    write_json(out / "tuned.json", found)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table("optimizer", "best lr", "with", "validation loss", "runs")
    for optimizer, entry in found.items():
        best = dict(entry["best"])
        loss, lr = best.pop("valid_loss"), best.pop("lr")
        others = ", ".join(f"{key}={value}" for key, value in best.items()) or "–"
        table.add_row(optimizer, f"{lr:.4g}", others, f"{loss:.4f}", str(len(entry["trials"])))
    Console().print(table)


@app.command()
def sample(
    folder: Annotated[Path, typer.Argument(help="Folder of a run of char-lm or word-lm.")],
    count: Annotated[int, typer.Option(help="Symbols to draw.")] = 400,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 bolder.")] = 1.0,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Text generated from a trained language model."""
    print(draw_text(folder, count, prompt=prompt, temperature=temperature, seed=seed, data_dir=data_dir))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder with runs in it, at any depth.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in that folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """One HTML page about all runs below a folder: curves, memory, verdicts, results. It works offline."""
    path = write_report(folder, out)
    print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")


@app.command()
def doctor(
    model: Annotated[str | None, typer.Argument(help="A task, or module:function that returns a model.")] = None,
    threads: Threads = 2,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What is installed, which data is there, how fast this machine is, and what adaQN costs for a model."""
    found = examine(model, threads, data_dir)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"Python {found['python']} on {found['machine']}; reads {found['read_gb_per_second']} GB/s ({threads} threads)"
    )
    print("installed: " + ", ".join(f"{name} {version or '–'}" for name, version in found["packages"].items()))
    print("data: " + ", ".join(f"{name} {'here' if here else 'not here'}" for name, here in found["data"].items()))
    if "model" in found:
        table = Table("setting", "memory", "ms per step", title=f"{model}: {found['model']['parameters']:,} parameters")
        for name, cost in found["model"]["settings"].items():
            table.add_row(name, f"{cost['bytes'] / 1e6:,.1f} MB", f"{1e3 * cost['seconds_per_step']:.2f}")
        Console().print(table)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """What is there, and where."""
    rows = [
        {"data": name, "file": file.path, "found": str(path) if (path := files.find(file, data_dir)) else None}
        for name, members in files.DATA_SETS.items()
        for file in members
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("data", "file", "found")
    for row in rows:
        table.add_row(row["data"], row["file"], row["found"] or "not here: adaqn data download")
    Console().print(table)


@data_app.command("download")
def data_download(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all of them by default.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Fetch what is not there into the cache, checked by its sha256."""
    for name in names or files.DATA_SETS:
        for file in members_of(name):
            path = files.find(file, data_dir)
            print(f"{file.path}: already at {path}" if path else f"{file.path}: now at {files.download(file)}")


@data_app.command("verify")
def data_verify(data_dir: DataDir = None) -> None:
    """Compare every file that is there with its sha256; exit code 1 if one differs."""
    wrong = 0
    for members in files.DATA_SETS.values():
        for file in members:
            path = files.find(file, data_dir)
            if path is None:
                print(f"{file.path}: not here")
                continue
            actual = hashlib.sha256(path.read_bytes()).hexdigest()
            print(f"{path}: as expected" if actual == file.sha256 else files.wrong_checksum(path, actual, file))
            wrong += actual != file.sha256
    raise typer.Exit(1 if wrong else 0)


def members_of(name: str) -> tuple[files.DataFile, ...]:
    if name not in files.DATA_SETS:
        raise UserError(f"no data set called {name!r}: give one of {', '.join(files.DATA_SETS)}")
    return files.DATA_SETS[name]


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
        app()
    except UserError as error:
        print(f"adaqn: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("adaqn: interrupted; what was done so far is saved", file=sys.stderr)
        sys.exit(130)
