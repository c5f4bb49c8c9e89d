"""The command line: what it prints, what it leaves, and what it takes."""

import inspect
import json
import subprocess
from dataclasses import fields

import pytest
from laboratory import ADAQN

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
def test_the_command_line_has_no_stack_traces(tmp_path, arguments):
    done = subprocess.run([*ADAQN, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_compare_leaves_a_table_figures_and_a_report(tmp_path):
    flags = ["--steps", "20", "--limit", "20000", "--layers", "1", "--hidden", "8", "--seeds", "2"]
    done = subprocess.run(
        [*ADAQN, "compare", *flags, "--out", "compared", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {row["optimizer"] for row in printed["rows"]} == {"adaQN", "adaQN (paper)", "Adagrad", "Adam"}
    assert all(row["seeds"] == 2 for row in printed["rows"])
    assert (tmp_path / "compared" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "plotly" in (tmp_path / "compared" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in (tmp_path / "compared" / "curves.svg").read_text(encoding="utf-8")
    assert printed["headline"].startswith("Adam's final test loss (")
    assert all(row["memory"].endswith(("kB", "MB")) for row in printed["rows"])
    again = subprocess.run(
        [*ADAQN, "compare", *flags, "--out", "compared"], capture_output=True, text=True, cwd=tmp_path
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == printed["headline"]


def test_without_options_adaqn_is_compared_as_it_comes():
    ours, *others = parse_optimizers(RIVALS)
    assert ours == ("adaqn", None)
    assert all(lr is not None for _, lr in others)


@pytest.mark.parametrize(("command", "own"), [("train", set()), ("compare", {"seed"}), ("tune", set())])
def test_every_number_of_a_run_can_be_set_on_the_command_line(command, own):
    names = {field.name for field in fields(RunConfig)} - {"optimizer", "lr", "options"} - own
    (found,) = (c for c in app.registered_commands if c.callback.__name__ == command)
    assert names <= set(inspect.signature(found.callback).parameters)


def test_options_reach_the_run(tmp_path):
    flags = ["--task", "word-lm", "--vocabulary", "50", "--monitor-size", "7", "--limit", "6000", "--steps", "2"]
    done = subprocess.run(
        [*ADAQN, "train", *flags, "--hidden", "8", "--layers", "1", "--json"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)["config"]
    assert (config["vocabulary"], config["monitor_size"]) == (50, 7)
    assert json.loads(done.stdout)["parameters"] == 50 * 8 + (8 * 8 * 2 + 16) + (8 * 50 + 50)
