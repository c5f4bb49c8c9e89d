"""The search on Optuna: shared by workers, resumed, chosen by validation."""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import optuna
import pytest
from laboratory import ADAQN, wait_until
from laboratory import command as command_line
from optuna.trial import TrialState

from adaqn.experiments.errors import UserError
from adaqn.experiments.search import tune as searching
from adaqn.experiments.search.points import due
from adaqn.experiments.search.tune import begun, for_optimizers, opened, tune
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.options import resolved
from limits import LIMIT

SMALL = RunConfig(layers=1, hidden=8, limit=12_000, steps=6, batch_size=8, length=20)


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
    return [*ADAQN, "tune", *size, *flags, "--out", str(out)]


def test_interrupted_it_goes_on_where_it_was(tmp_path):
    first = subprocess.Popen(tune_command(6, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(list(tmp_path.glob("runs/*/result.json"))) >= 2, first)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=LIMIT)
    assert first.returncode == 130
    assert "Traceback" not in errors
    done = subprocess.run(tune_command(6, tmp_path), capture_output=True, text=True, check=True, timeout=LIMIT)
    assert len(json.loads(done.stdout)["sgd"]["trials"]) == 6
    assert "Warning" not in errors + done.stderr  # Optuna's about its heartbeats


def test_a_killed_worker_loses_nothing(tmp_path, monkeypatch):
    """Its point stays at work in the database until it has given no sign of life for a while."""
    command = tune_command(4, tmp_path)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list(tmp_path.glob("runs/*/result.json")), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    study = optuna.load_study(storage=f"sqlite:///{tmp_path / 'tuning.db'}", study_name="tuning/sgd")
    assert study.get_trials(states=[TrialState.RUNNING])
    monkeypatch.setattr(searching, "STALE", 1)
    done = json.loads(command_line(*command[3:]).stdout)
    assert len(done["sgd"]["trials"]) == 4


def test_points_queued_twice_are_run_once(tmp_path):
    """Two machines that start at the same moment both find the queue empty, and both fill it."""
    base = replace(resolved(replace(SMALL, optimizer="sgd")), options={})
    study = begun(opened(f"sqlite:///{tmp_path / 'tuning.db'}", tmp_path), "tuning/sgd", base)
    for point in 2 * due("grid", "sgd", 3, {}):
        study.enqueue_trial(point._asdict())
    found = tune(for_optimizers(SMALL, ["sgd"]), 3, tmp_path, workers=2)
    assert sorted(point["lr"] for point in found["sgd"]["trials"]) == [0.01, 0.1, 1.0]
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # the test asks where a search optimizes
def test_a_waiting_point_is_claimed_by_one_worker_alone(tmp_path):
    storage = opened(f"sqlite:///{tmp_path / 'tuning.db'}", tmp_path)
    study = begun(storage, "tuning/sgd", replace(SMALL, optimizer="sgd"))
    for lr in range(1, 25):
        study.enqueue_trial({"lr": float(lr), "choice": 0})
    with ThreadPoolExecutor(4) as threads:
        numbers = list(threads.map(lambda _: study.ask().number, range(24)))
    assert sorted(numbers) == list(range(24))


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


def test_mistakes_in_a_search_are_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="no search called 'random'"):
        tune(for_optimizers(SMALL, ["sgd"]), 4, tmp_path, search="random")
    with pytest.raises(UserError, match="at least 4"):
        tune(for_optimizers(SMALL, ["adaqn"]), 3, tmp_path, search="staged")
    with pytest.raises(UserError, match=r"postgresql://me:\*\*\*@nowhere"):
        tune(for_optimizers(SMALL, ["sgd"]), 4, tmp_path, url="postgresql://me:secret@nowhere/studies")


def test_a_search_with_other_settings_is_refused(tmp_path):
    tune(for_optimizers(replace(SMALL, steps=2), ["sgd"]), 1, tmp_path, workers=1)
    with pytest.raises(UserError, match=r"begun with other settings \(steps was 2, and is 3 now"):
        tune(for_optimizers(replace(SMALL, steps=3), ["sgd"]), 1, tmp_path, workers=1)
