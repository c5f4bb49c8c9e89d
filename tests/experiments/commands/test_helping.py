"""What the command says of itself, and when."""

import io
import shlex
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table
from typer.main import get_command
from typer.testing import CliRunner

import adaqn
from adaqn import cli
from adaqn.experiments.commands import app as application
from adaqn.experiments.commands import display
from adaqn.experiments.commands.app import app
from adaqn.experiments.commands.helping import EXAMPLES


def commands():
    """Name as it is typed → command."""
    found = {}
    for name, command in get_command(app).commands.items():
        found[name] = command
        found |= {f"{name} {inner}": part for inner, part in getattr(command, "commands", {}).items()}
    return found


def test_version(capsys, monkeypatch):
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"adaqn {adaqn.__version__}\n")
    monkeypatch.setattr(sys, "argv", ["adaqn", "--version"])
    monkeypatch.setitem(sys.modules, "adaqn.experiments.commands.app", None)  # as if typer were not installed
    cli.main()
    assert capsys.readouterr().out == f"adaqn {adaqn.__version__}\n"


def test_every_command_has_examples():
    assert set(EXAMPLES) == {"", *commands()}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name])
def test_help_shows_them_and_flags_without_values(name):
    said = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"}).output
    assert all(example in said for example in EXAMPLES[name])
    assert "<bool>" not in said


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_one_that_the_command_takes(example):
    program, name, *arguments = shlex.split(example)
    command = get_command(app).commands[name]
    if hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    assert program == "adaqn"
    command.make_context(name, arguments, resilient_parsing=False)


def test_whole_paths_of_data(tmp_path):
    deep = tmp_path / ("a-folder-with-a-long-name-" * 4)
    deep.mkdir()
    (deep / "nietzsche.txt").write_text("text")
    said = CliRunner().invoke(app, ["data", "list", "--data-dir", str(deep)], env={"COLUMNS": "40"}).output
    assert f"  {deep / 'nietzsche.txt'}\n" in said


def test_lines_go_into_a_pipe_as_they_are_printed(monkeypatch):
    written = io.BytesIO()
    pipe = io.TextIOWrapper(written)

    def report():
        print("first")
        assert written.getvalue() == b"first\n"

    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "argv", ["adaqn"])
    monkeypatch.setattr(application, "app", report)
    application.run()


def test_tables_in_a_pipe_are_not_cut(capsys):
    table = Table(*(f"column {i}" for i in range(11)))
    table.add_row(*["12 letters.."] * 11)
    display.screen().print(table)
    assert capsys.readouterr().out.count("12 letters..") == 11


@pytest.fixture
def log(monkeypatch):
    """What goes to stderr that is no terminal."""
    written = io.StringIO()
    monkeypatch.setattr(display, "Console", lambda **kwargs: Console(file=written, quiet=kwargs.get("quiet", False)))
    return written


def test_progress_of_runs_in_a_log_is_a_line_for_each_tenth(log):
    with display.progress_bars(["adam"]) as told:
        for step in range(1, 101):
            told(0, SimpleNamespace(step=step, steps=100, loss=2.0))
            if step == 10:
                assert log.getvalue() == "adam: 10 of 100, training loss 2.000\n"
    assert len(log.getvalue().splitlines()) == 10


def test_progress_of_searches_and_figures_in_a_log(log):
    with display.count_bars(["adam", "sgd"], 4) as told:
        told({"adam": 0, "sgd": 0})
        told({"adam": 1, "sgd": 0})
    assert log.getvalue() == "adam: 1 of 4 runs\n"
    with display.figure_bar(2) as told:
        told(0, SimpleNamespace(step=5, steps=5, loss=1.0))
    assert "50 % of 2 runs, 1 finished" in log.getvalue()
    with display.progress_bars(["adam"], quiet=True) as told:
        told(0, SimpleNamespace(step=5, steps=5, loss=1.0))
    assert "5 of 5" not in log.getvalue()
