"""What people do to a laboratory: damaged files, odd options."""

import os
import subprocess
from dataclasses import replace

import pytest
from laboratory import ADAQN, command, refused

from adaqn.experiments.commands.compare import parse_optimizers
from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.team import check_command, restarts

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=20, batch_size=8, length=20, evaluations=13, lr=0.01)

WHOLE = ["train", "--task", "fit", "--problem", "digits", "--optimizer", "adaqn-lbfgs"]


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"cells": {"addition/embedded/tanh/staged": {"curves": {"adaqn": 3}}}}']
)
def test_a_damaged_tuning_file_is_one_line(tmp_path, content):
    (tmp_path / "tuning.json").write_text(content)
    assert "tuning" in refused("figure", "addition", "--tuning", tmp_path / "tuning.json", "--out", tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--length", "0"], "length must be at least 1, got 0"),
        (["train", "--seed", str(10**16)], "seed must be at most"),
        (["train", "--threads", "99999999999"], "threads must be from 1 to 1024"),
        (["train", "--device", "meta"], "holds no numbers"),
        (["train", "--data", "\udcff.txt"], r"data is '\udcff.txt', which is not UTF-8"),
        (["train", "--task", "mlp", "--side", "3"], "side is for --data mnist"),
        (["train", "--task", "pixel-mnist", "--length", "7"], "length is for texts"),
        (["train", "--optimizer", "soap", "--option", "foo=1"], "soap has no option foo"),
        (["train", "--optimizer", "muon", "--option", "foo=1"], "muon has no option foo"),
        (["train", "--optimizer", "kfac", "--option", "foo=1"], "kfac has no option foo"),
        (["train", "--option", "lr=0.5"], "give the step size as --lr"),
        (["train", "--option", "monitor=5"], "--monitor-size"),
        (["train", "--option", "scaling_eps=1", "--option", "scaling=x"], "scaling must be one of"),
        (["train", "--option", "scaling_eps=1", "--option", 'scaling={"name": "adam"}'], "scaling must be one of"),
        (["train", "--option", "scaling_eps=1", "--option", "scaling=identity"], "scaling_eps=1 has no meaning"),
        (["train", "--option", "preset=[]"], "no preset called []: give one of"),
        (["train", "--optimizer", "adam", "--option", "foreach=true", "--option", "fused=true"], "adam"),
        (["train", "--optimizer", "adam", "--option", "capturable=true", "--steps", "2"], "adam with"),
        (["compare", "--optimizers", "adam,adam"], "'adam' is given twice"),
        (["compare", "--workers", "0"], "workers must be at least 1"),
        ([*WHOLE, "--lr", "1e300"], "lr must be at most 3.403e+38, the largest number of float32, got 1e+300"),
        (["train", "--optimizer", "adam", "--lr", "1e300"], "lr must be at most 3.403e+38"),
        ([*WHOLE, "--schedule", "cosine"], "schedule is not for adaqn-lbfgs, whose step(closure) finds the length"),
        ([*WHOLE, "--warm-up", "3"], "warm-up is not for adaqn-lbfgs"),
        (["train", "--optimizer", "olbfgs", "--schedule", "cosine"], "olbfgs, whose step(closure) has one step size"),
        (["compare", *WHOLE[1:3], "--optimizers", "soap,adaqn-bfgs", "--schedule", "cosine"], "not for adaqn-bfgs"),
        (["tune", *WHOLE[1:3], "--optimizers", "adam-lbfgs", "--warm-up", "2"], "warm-up is not for adam-lbfgs"),
        ([*WHOLE, "--clip", "1"], "clip is not for fit: a clipped gradient is not that of the loss"),
        (["tune", "--optimizers", "adagrad:0.5"], "give names without step sizes"),
        (["tune", "--workers", "0"], "workers must be at least 1"),
        (["tune", "--data", "nosuch.txt"], "no text called 'nosuch.txt'"),
        (["tune", "--out", "/proc/tune"], "cannot make the folder"),
        (["figure", "addition", "--workers", "0"], "workers must be at least 1"),
        (["figure", "addition", "--optimizers", "adam:0.5"], "takes tuned step sizes; leave out ':0.5'"),
        (["figure", "addition", "--optimizers", "adaqn-default"], "no optimizer called 'adaqn-default'"),
        (["train", "--data", "nietzsche", "--data-dir", "/nonexistent"], "there is no folder /nonexistent"),
    ],
)
def test_odd_options_are_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    small = ["--limit", "12000", "--layers", "1", "--hidden", "8"] if words[0] != "figure" else []
    assert said in refused(*words, *small)


def test_the_same_optimizer_with_two_step_sizes_is_two():
    assert len(parse_optimizers("adam:0.1,adam:0.2")) == 2


def test_the_seconds_between_checkpoints_must_be_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAQN_CHECKPOINT_SECONDS", "soon")
    with pytest.raises(UserError, match="must be a number of seconds of at least 0, got 'soon'"):
        run_one(SMALL, tmp_path / "run")


@pytest.mark.parametrize(
    ("variable", "ask"),
    [("TORCHELASTIC_RESTART_COUNT", restarts), ("WORLD_SIZE", lambda: check_command(["report"]))],
)
def test_what_torchrun_never_says_is_one_line(monkeypatch, variable, ask):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv(variable, "x")
    with pytest.raises(UserError, match=f"{variable} must be a whole number, as torchrun sets it, got 'x'"):
        ask()


def test_a_terminal_without_our_characters_has_their_numbers(tmp_path):
    """Also half a character, which may be in the name of a folder."""
    folder = tmp_path / "\udcff–"
    run_one(replace(SMALL, steps=1), folder / "run")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([*ADAQN, "report", folder], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"/\udcff\u2013/report.html" in done.stdout


def test_what_is_refused_leaves_no_empty_bar_behind(tmp_path):
    done = command(*WHOLE, "--option", "foo=1", "--out", tmp_path / "run")
    assert "has no option foo" in str(done.exception)
    assert done.output == ""
