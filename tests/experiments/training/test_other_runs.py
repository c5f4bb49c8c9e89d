"""A file of another run, copied into the folder of a run, is told and not taken for its own."""

import json
import shutil
from dataclasses import replace

import pytest
from laboratory import command, refused, same_run, unsealed

from adaqn.experiments.commands.explain import explain_run
from adaqn.experiments.errors import UserError
from adaqn.experiments.results.report import collect
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import (
    CHECKPOINT,
    CONFIG,
    CYCLES,
    METRICS,
    RESULT,
    finished,
    folder_name,
)
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import run_all, run_one
from inside import recent

SMALL = RunConfig(layers=1, hidden=8, limit=12_000, steps=12, batch_size=8, length=20, evaluations=5, lr=0.01)
OTHER = replace(SMALL, seed=1)
WHOLE = RunConfig(task="pinn", problem="wave", layers=1, hidden=4, points=20, steps=12, optimizer="adaqn-lbfgs")


@pytest.fixture
def two(tmp_path):
    return [run_one(config, tmp_path / name).folder for config, name in ((SMALL, "ours"), (OTHER, "theirs"))]


def copied(theirs, ours, *names):
    for name in names:
        shutil.copy(theirs / name, ours / name)


def stop_late(progress):
    if progress.step >= 10:
        raise KeyboardInterrupt


def is_other(path, message):
    return f"{path} is of another run: its identity is" in message and "it was left in place" in message


def test_a_result_of_another_run_is_not_this_runs(two):
    ours, theirs = two
    copied(theirs, ours, RESULT, METRICS)
    with pytest.raises(UserError, match=r"result\.json is of another run"):
        finished(ours)
    for words in (["train", "--resume", "--out"], ["explain"]):
        assert is_other(ours / RESULT, refused(*words, ours))
    done, others = collect(ours.parent)
    assert [run.folder for run in done] == [theirs]
    (left_out,) = others
    assert left_out["folder"] == "ours"
    assert is_other(ours / RESULT, left_out["state"])


def test_what_the_error_says_to_do_brings_the_result_back(two):
    ours, theirs = two
    before = finished(ours)
    copied(theirs, ours, RESULT, METRICS)
    (ours / RESULT).unlink()
    assert command("train", "--resume", "--out", ours).exit_code == 0
    same_run(finished(ours), before)


def test_a_run_in_the_folder_of_another_is_not_compared(tmp_path):
    """Whole folders may be renamed too."""
    ours, theirs = (tmp_path / folder_name(config) for config in (SMALL, OTHER))
    run_one(OTHER, theirs)
    shutil.copytree(theirs, ours)
    for name in ("", CONFIG):  # also where the rest is lost
        (ours / name).unlink() if name else None
        with pytest.raises(UserError, match=r"result\.json is of another run"):
            run_all([SMALL], tmp_path, 1)


def test_a_run_that_was_begun_as_another_is_not_gone_on_with(tmp_path):
    run = open_run(OTHER, tmp_path)
    run.begin()
    with pytest.raises(UserError, match=r"config\.json is of another run"):
        run_one(SMALL, tmp_path)
    assert run_one(OTHER, tmp_path).result["config"]["seed"] == 1


def test_a_checkpoint_of_another_run_is_refused_in_the_same_words(two):
    ours, theirs = two
    (ours / RESULT).unlink()
    copied(theirs, ours, CHECKPOINT)
    messages = {refused(*words, ours) for words in (["sample"], ["train", "--resume", "--out"])}
    assert len(messages) == 1
    assert is_other(ours / CHECKPOINT, *messages)


def test_cycles_of_another_run_are_not_explained(two):
    ours, theirs = two
    copied(theirs, ours, CYCLES)
    assert is_other(ours / CYCLES, refused("explain", ours))


@pytest.mark.parametrize("config", [SMALL, WHOLE], ids=["cycles", "iterations"])
def test_cycles_of_another_run_are_not_recalled(tmp_path, config):
    theirs = run_one(replace(config, seed=1), tmp_path / "theirs").folder
    config = replace(config, options={"max_iter": 2} if config is WHOLE else {})

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "ours", None, stop_late)
    resumed = open_run(config, tmp_path / "ours")
    resumed.resume()
    assert recent(resumed.optimizer)
    copied(theirs, tmp_path / "ours", CYCLES)
    resumed = open_run(config, tmp_path / "ours")
    resumed.resume()  # it is no reason not to go on
    assert not recent(resumed.optimizer)


def test_files_of_versions_that_did_not_say_whose_they_are_are_read(two):
    ours, _ = two
    said = str(explain_run(ours)[1])
    for name in (RESULT, CYCLES):
        unsealed(ours / name, lambda values: values.pop("identity"))
    assert finished(ours).result["steps"] == SMALL.steps
    assert str(explain_run(ours)[1]) == said


def test_an_option_that_a_file_cannot_hold_makes_no_other_run(tmp_path):
    """What is not finite is null in the files, and so config.json alone would say another identity."""
    config = replace(WHOLE, options={"max_iter": 2, "tolerance_grad": float("-inf")})
    done = run_one(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / CONFIG).read_text())["run"]["options"]["tolerance_grad"] is None
    assert finished(tmp_path / "run").result == done.result
    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, stop_late)
    same_run(run_one(config, tmp_path / "stopped"), done)
