"""The grid search: the same budget for all, shared by workers, resumed, chosen by validation; and text from a model."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import optuna
import pytest

from adaqn.experiments.commands.sample import sample
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.search.points import configured, grid
from adaqn.experiments.search.trials import prepare
from adaqn.experiments.search.tune import for_optimizers, tune
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(layers=1, hidden=8, limit=12_000, steps=6, batch_size=8, length=20)


@pytest.mark.parametrize("optimizer", list(TABLE))
def test_every_optimizer_has_the_same_number_of_runs(optimizer):
    points = grid(optimizer, 20)
    assert len(points) == 20
    assert len({tuple(point.values()) for point in points}) == 20
    lrs = [point["lr"] for point in points]
    assert max(lrs) / min(lrs) == pytest.approx(100)


def test_the_papers_other_choices_are_in_the_grid():
    lengths = {configured(replace(SMALL, optimizer="adaqn"), p).options["cycle_length"] for p in grid("adaqn", 20)}
    assert lengths == {2, 5, 10, 20}
    assert len({tuple(configured(replace(SMALL, optimizer="adam"), p).options["betas"]) for p in grid("adam", 20)}) == 4


def test_a_budget_that_does_not_divide_is_one_error(tmp_path):
    with pytest.raises(UserError, match="multiple of 4"):
        tune(for_optimizers(SMALL, ["adaqn"]), 6, tmp_path)
    assert not list(tmp_path.iterdir())


def test_workers_share_the_grid_and_a_second_call_adds_nothing(tmp_path):
    found = tune(for_optimizers(SMALL, ["adam", "adagrad"]), 4, tmp_path, workers=2)
    again = tune(for_optimizers(SMALL, ["adam", "adagrad"]), 4, tmp_path, workers=2)
    assert again == found
    for entry in found.values():
        assert len(entry["trials"]) == 4
        assert entry["best"]["valid_loss"] == min(point["valid_loss"] for point in entry["trials"])
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 8


def tune_command(budget, out):
    size = ["--steps", "40", "--limit", "12000", "--layers", "1", "--hidden", "8"]
    flags = ["--optimizers", "sgd", "--budget", str(budget), "--workers", "1", "--json"]
    return [sys.executable, "-m", "adaqn", "tune", *size, *flags, "--out", out]


def test_interrupted_it_goes_on_where_it_was(tmp_path):
    command = tune_command(12, tmp_path)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.glob("runs/*/result.json"))) < 3:
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 130
    assert "Traceback" not in errors
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["sgd"]["trials"]) == 12


def test_a_killed_worker_loses_nothing(tmp_path):
    command = tune_command(8, tmp_path)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while len(list(tmp_path.glob("runs/*/result.json"))) < 2:
        assert first.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["sgd"]["trials"]) == 8


def test_points_queued_twice_are_run_once(tmp_path):
    """Two machines that start at the same moment both find the queue empty, and both fill it."""
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    prepare(for_optimizers(SMALL.complete(), ["sgd"]), {"sgd": grid("sgd", 3)}, url, "tuning", tmp_path)
    study = optuna.load_study(storage=url, study_name="tuning/sgd")
    for point in grid("sgd", 3):
        study.enqueue_trial(point)
    found = tune(for_optimizers(SMALL, ["sgd"]), 3, tmp_path, workers=2)
    assert sorted(point["lr"] for point in found["sgd"]["trials"]) == [0.01, 0.1, 1.0]
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_a_staged_search_tries_the_other_choices_at_the_best_step_size(tmp_path):
    found = tune(for_optimizers(SMALL, ["adaqn", "sgd"]), 6, tmp_path, search="staged")
    trials = found["adaqn"]["trials"]
    assert len(trials) == len(found["sgd"]["trials"]) == 6
    first = [trial for trial in trials if trial["cycle_length"] == 5]
    best = min(first, key=lambda trial: trial["valid_loss"])
    assert len(first) == 3
    assert {(t["cycle_length"], t["lr"]) for t in trials if t not in first} == {(n, best["lr"]) for n in (2, 10, 20)}
    again = tune(for_optimizers(SMALL, ["adaqn", "sgd"]), 6, tmp_path, search="staged")
    assert again == found


@pytest.mark.parametrize("optimizer", list(TABLE))
def test_a_search_over_step_sizes_has_as_many_for_every_optimizer(optimizer):
    assert len({point["lr"] for point in grid(optimizer, 6, "lr")}) == 6


def test_mistakes_in_a_search_are_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="no search called 'random'"):
        tune(for_optimizers(SMALL, ["sgd"]), 4, tmp_path, search="random")
    with pytest.raises(UserError, match="at least 4"):
        tune(for_optimizers(SMALL, ["adaqn"]), 3, tmp_path, search="staged")
    with pytest.raises(UserError, match=r"postgresql://me:\*\*\*@nowhere"):
        tune(for_optimizers(SMALL, ["sgd"]), 4, tmp_path, url="postgresql://me:secret@nowhere/studies")


def test_text_from_a_trained_model(tmp_path):
    run_one(replace(SMALL, steps=30), tmp_path / "run")
    text = sample(tmp_path / "run", 50, prompt="The ")
    assert text.startswith("The ")
    assert len(text) == 54
    assert text == sample(tmp_path / "run", 50, prompt="The ")
    assert text != sample(tmp_path / "run", 50, prompt="The ", seed=1)
    with pytest.raises(UserError, match="not in the vocabulary"):
        sample(tmp_path / "run", 5, prompt="\N{SNOWMAN}")
    with pytest.raises(UserError, match="temperature positive"):
        sample(tmp_path / "run", 5, temperature=0.0)


def test_words_from_a_trained_model_and_no_text_from_another(tmp_path):
    run_one(replace(SMALL, task="word-lm", limit=4_000), tmp_path / "words")
    assert len(sample(tmp_path / "words", 10).split()) <= 10
    run_one(replace(SMALL, task="mlp", limit=100, length=None), tmp_path / "digits")
    with pytest.raises(UserError, match="no language model"):
        sample(tmp_path / "digits", 5)
