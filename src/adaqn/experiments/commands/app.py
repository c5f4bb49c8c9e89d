"""The commands of the laboratory, gathered, and what becomes of mistakes and interrupts."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from adaqn import __version__
from adaqn.experiments.commands.compare import compare
from adaqn.experiments.commands.data import data_app
from adaqn.experiments.commands.doctor import doctor
from adaqn.experiments.commands.explain import explain
from adaqn.experiments.commands.figure import figure
from adaqn.experiments.commands.helping import Command, Group, examples
from adaqn.experiments.commands.options import AsJson
from adaqn.experiments.commands.sample import sample
from adaqn.experiments.commands.study import study
from adaqn.experiments.commands.train import train
from adaqn.experiments.commands.tune import tune
from adaqn.experiments.errors import told
from adaqn.experiments.results.report import write_report
from adaqn.experiments.training.storage import json_text
from adaqn.experiments.training.team import check_command


def show_version(asked: bool) -> None:
    if asked:
        print(f"adaqn {__version__}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    cls=Group,
    epilog=examples(""),
)
app.add_typer(data_app, name="data", epilog=examples("data"))
for command in (train, compare, tune, figure, study, explain, sample):
    app.command(cls=Command, epilog=examples(command.__name__))(command)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Quasi-Newton training of neural networks: the experiments of the adaQN paper, one command each."""


@app.command(cls=Command, epilog=examples("report"))
def report(
    folder: Annotated[Path, typer.Argument(help="Folder with runs in it, at any depth.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Output file; by default report.html in that folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """One HTML page about all runs below a folder: curves, memory, verdicts, results. It works offline."""
    path = write_report(folder, out)
    print(json_text({"report": str(path)}) if as_json else f"report: {path}")


app.command(cls=Command, epilog=examples("doctor"))(doctor)


def run() -> None:
    """Mistakes of the user are one line and exit code 2; Ctrl-C is exit code 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines also in a pipe, where Python would hold back some 8,000 characters; and what the encoding of a terminal
        # does not have, or half a character in the name of a folder, is told by its number.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        check_command(sys.argv[1:])
        app()
    except Exception as error:
        line = told(error)
        if line is None:
            raise
        print(f"adaqn: {line}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:  # typer makes the first into the second, without a word
        if isinstance(end, SystemExit) and end.code != 130:
            raise
        again = "'adaqn train --resume --out FOLDER'" if sys.argv[1:2] == ["train"] else "the same command"
        print(f"adaqn: interrupted; what was done so far is saved, and {again} continues", file=sys.stderr)
        sys.exit(130)
