"""The search: read from the folders of its runs, resumed, shared, chosen by validation."""

import json
import math
import os
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest
from inline import inline_workers
from laboratory import ADAQN, command, wait_until

from adaqn.experiments.errors import UserError
from adaqn.experiments.search.points import Point
from adaqn.experiments.search.tune import CurveSearch, Tried, for_optimizers, searches, tune
from adaqn.experiments.training import parallel
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import RESULT, finished, folder_name
from adaqn.experiments.training.opening import run_one
from adaqn.experiments.training.storage import write_sealed

SMALL = RunConfig(layers=1, hidden=8, limit=12_000, steps=6, batch_size=8, length=20)


@pytest.fixture
def inline(monkeypatch):
    """Without processes, which other tests have."""
    monkeypatch.setattr(parallel, "started_workers", inline_workers)


def test_a_budget_that_does_not_divide_is_one_error(tmp_path):
    with pytest.raises(UserError, match="multiple of 4"):
        tune(for_optimizers(SMALL, ["adaqn"]), 6, tmp_path)
    assert not list(tmp_path.iterdir())


def test_workers_share_the_grid_and_a_second_call_adds_nothing(tmp_path):
    found = tune(for_optimizers(SMALL, ["adam", "adagrad"]), 4, tmp_path, workers=2)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    again = tune(for_optimizers(SMALL, ["adam", "adagrad"]), 4, tmp_path, workers=2)
    assert again == found
    assert len(made) == 8
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")} == made
    for entry in found.values():
        assert len(entry["trials"]) == 4
        assert entry["best"]["valid_loss"] == min(point["valid_loss"] for point in entry["trials"])


def test_killed_with_all_its_workers_it_goes_on_where_it_was(tmp_path):
    size = ["--steps", "40", "--limit", "12000", "--layers", "1", "--hidden", "8"]
    flags = ["--optimizers", "sgd", "--budget", "4", "--workers", "1", "--json"]
    words = ["tune", *size, *flags, "--out", str(tmp_path)]
    first = subprocess.Popen(
        [*ADAQN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(lambda: list(tmp_path.glob("runs/*/result.json")), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    done = command(*words)
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["sgd"]["trials"]) == 4
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())


def test_a_staged_search_tries_the_other_choices_at_the_best_step_size(tmp_path, inline):
    found = tune(for_optimizers(SMALL, ["adaqn", "sgd"]), 6, tmp_path, search="staged")
    trials = found["adaqn"]["trials"]
    assert len(trials) == len(found["sgd"]["trials"]) == 6
    first = [trial for trial in trials if trial["cycle_length"] == 5]
    best = min(first, key=lambda trial: trial["valid_loss"])
    assert len(first) == 3
    assert {(t["cycle_length"], t["lr"]) for t in trials if t not in first} == {(n, best["lr"]) for n in (2, 10, 20)}


def test_which_run_of_a_round_ended_first_changes_nothing(tmp_path, inline):
    """Of five rungs of a ladder two are of one round; either may be missing on a machine that looks."""
    base = replace(SMALL, optimizer="adam").complete()
    whole = tune({"adam": base}, 5, tmp_path, search="ladder")["adam"]["trials"]
    for trial in whole:
        gone = tmp_path / "runs" / folder_name(replace(base, lr=trial["lr"], options={"betas": [0.9, 0.999]}))
        aside = shutil.move(gone, tmp_path / "aside")
        search = CurveSearch(base, "ladder", 5, tmp_path / "runs", None, lambda: None)
        assert [point.lr for point in search.due()] == [trial["lr"]]
        assert not search.is_over()
        shutil.move(aside, gone)
    assert CurveSearch(base, "ladder", 5, tmp_path / "runs", None, lambda: None).is_over()


def test_finished_runs_of_an_unfinished_round_are_told(tmp_path, inline):
    base = replace(SMALL, optimizer="sgd").complete()
    search = CurveSearch(base, "lr", 3, tmp_path, None, lambda: None)
    first, second, _ = search.jobs()
    for job in (first, second):
        run_one(job.config, job.folder)
    assert len(search.due()) == 1
    trials = search.results()["trials"]
    assert {trial["lr"] for trial in trials} == {first.config.lr, second.config.lr}
    assert (search.finished_runs(), search.results()["best"]) == (2, None)
    elsewhere = {Point(trial["lr"]): Tried(trial["valid_loss"], trial["seconds"]) for trial in trials}
    other = CurveSearch(base, "lr", 3, tmp_path / "other", None, lambda: None, elsewhere)
    assert len(other.due()) == 1
    assert other.results() == search.results()


def test_budgets_in_time_give_slow_methods_fewer_points(tmp_path):
    """Three of Adam's runs of 2 seconds each; nobody knows the time before Adam's first run is there."""
    found = searches(for_optimizers(SMALL, ["sgd", "adam", "hf"]), "time", 3, tmp_path)
    assert [point.lr for point in found["sgd"].due()] == [0.1]
    found["sgd"].tried = {Point(0.1): Tried(1.0, 1.0)}
    assert found["sgd"].due() == []
    assert not found["sgd"].is_over(), "its time is not known yet"
    found["adam"].tried = {Point(1e-3, 1): Tried(1.0, 2.0)}
    found["hf"].tried = {Point(1.0): Tried(1.0, 100.0)}
    assert {name: search.count for name, search in found.items()} == {"sgd": 6, "adam": 3, "hf": 1}
    assert len(found["sgd"].due()) == 2
    assert found["hf"].is_over()


def test_a_run_that_diverges_never_wins(tmp_path, inline):
    base = replace(SMALL, optimizer="sgd", model="relu", steps=20)
    search = CurveSearch(base, "lr", 2, tmp_path, None, lambda: None)
    low, high = search.jobs()
    for job in (low, high):
        run_one(job.config, job.folder)
    found = finished(low.folder).result
    write_sealed(low.folder / RESULT, {**found, "final": {**found["final"], "valid_loss": math.nan}})  # as if it had
    assert search.is_over()
    assert search.tried[Point(low.config.lr)].loss == float("inf")
    assert search.best() == Point(high.config.lr)


def test_mistakes_in_a_search_are_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="no search called 'random'"):
        tune(for_optimizers(SMALL, ["sgd"]), 4, tmp_path, search="random")
    with pytest.raises(UserError, match="at least 4"):
        tune(for_optimizers(SMALL, ["adaqn"]), 3, tmp_path, search="staged")


def test_other_settings_are_another_search_in_the_same_folder(tmp_path, inline):
    tune(for_optimizers(replace(SMALL, steps=2), ["sgd"]), 1, tmp_path, workers=1)
    tune(for_optimizers(replace(SMALL, steps=3), ["sgd"]), 1, tmp_path, workers=1)
    assert len(list((tmp_path / "runs").iterdir())) == 2
