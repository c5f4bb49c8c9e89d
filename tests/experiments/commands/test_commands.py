"""The command line: what it prints, what it leaves, and what it takes."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields

import pytest
from laboratory import ADAQN, command

from adaqn.cli import main
from adaqn.experiments.commands.app import app
from adaqn.experiments.commands.compare import RIVALS, parse_optimizers
from adaqn.experiments.training.config import RunConfig


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--task", "vision"],
        ["train", "--optimizer", "newton", "--out", "x"],
        ["train", "--option", "cycle_length", "--out", "x"],
        ["train", "--resume", "--out", "nowhere"],
        ["compare", "--optimizers", "adam:fast"],
        ["data", "download", "imagenet"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_the_command_line_has_no_stack_traces(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["adaqn", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.strip()


def test_nor_has_it_as_a_process(tmp_path):
    done = subprocess.run([*ADAQN, "train", "--optimizer", "newton"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("adaqn: no optimizer called 'newton'")


def test_compare_leaves_a_table_figures_and_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--steps", "20", "--limit", "20000", "--layers", "1", "--hidden", "8", "--seeds", "2", "--workers", "1"]
    done = command("compare", *flags, "--out", "compared", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert {row["optimizer"] for row in printed["rows"]} == {"AdaQN", "adaQN (paper)", "Adagrad", "Adam"}
    assert all(row["seeds"] == 2 for row in printed["rows"])
    assert (tmp_path / "compared" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "plotly" in (tmp_path / "compared" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in (tmp_path / "compared" / "curves.svg").read_text(encoding="utf-8")
    assert printed["headline"].startswith("Adam's final test loss (")
    assert all(row["memory"].endswith(("kB", "MB")) for row in printed["rows"])
    again = command("compare", *flags, "--out", "compared")
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[-1] == printed["headline"]


def test_without_options_adaqn_is_compared_as_it_comes():
    ours, *others = parse_optimizers(RIVALS)
    assert ours == ("adaqn", None)
    assert all(lr is not None for _, lr in others)


@pytest.mark.parametrize(("name", "own"), [("train", set()), ("compare", {"seed"}), ("tune", set())])
def test_every_number_of_a_run_can_be_set_on_the_command_line(name, own):
    names = {field.name for field in fields(RunConfig)} - {"optimizer", "lr", "options"} - own
    (found,) = (c for c in app.registered_commands if c.callback.__name__ == name)
    assert names <= set(inspect.signature(found.callback).parameters)


def test_options_reach_the_run(tmp_path):
    flags = ["--task", "word-lm", "--vocabulary", "50", "--monitor-size", "7", "--limit", "6000", "--steps", "2"]
    done = command("train", *flags, "--hidden", "8", "--layers", "1", "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["config"]["vocabulary"], found["config"]["monitor_size"]) == (50, 7)
    assert found["parameters"] == 50 * 8 + (8 * 8 * 2 + 16) + (8 * 50 + 50)
