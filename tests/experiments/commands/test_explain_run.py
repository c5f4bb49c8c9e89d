"""``adaqn explain``: a run's folder in plain words, finished, interrupted or at work."""

import json
from dataclasses import replace

import pytest
from laboratory import at_step, unsealed
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.commands.explain import explain_run
from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.cycles import kept_cycles
from adaqn.experiments.training.folder import CONFIG, CYCLES
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.run import Run
from inside import recent

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=60, batch_size=8, length=20, evaluations=5, lr=0.01)


def said(folder):
    return {finding.name for finding in explain_run(folder)[1].findings}


def shown(*words):
    return CliRunner().invoke(app, ["explain", *map(str, words)], catch_exceptions=True)


def refused(folder):
    error = shown(folder).exception
    assert isinstance(error, UserError), repr(error)
    return str(error)


def test_a_finished_run_is_explained_as_its_optimizer_would(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.train()
    text = shown(tmp_path).output
    assert text == f"{tmp_path}: finished\n{run.optimizer.explain()}\n"
    assert "60 steps, 12 cycles with 0 rejected" in text
    assert "nothing to change" in text
    found = json.loads(shown(tmp_path, "--json").output)
    assert (found["optimizer"], found["state"], found["is_well"]) == ("adaqn", "finished", True)


def test_what_to_change_is_said_in_the_laboratorys_words(tmp_path):
    run_one(replace(SMALL, optimizer="adaqn-paper", options={"curvature_eps": 1e3}), tmp_path)
    text = shown(tmp_path).output
    assert 'use the scale-free test, --option curvature_test="scale_free"' in text
    found = json.loads(shown(tmp_path, "--json").output)
    assert {finding["severity"] for finding in found["findings"]} <= {"warning", "hint", "note"}
    assert "skipped-small" in said(tmp_path)
    assert "skipped-small" not in said_of(tmp_path / "other", {"curvature_eps": 1e3, "curvature_test": "positive"})


def said_of(folder, options):
    run_one(replace(SMALL, optimizer="adaqn-paper", options=options), folder)
    return said(folder)


def test_a_run_that_was_killed_and_resumed_is_explained_like_one_that_was_not(tmp_path):
    whole = run_one(SMALL, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        run_one(SMALL, tmp_path / "stopped", None, at_step(33))
    assert "not finished" in shown(tmp_path / "stopped").output
    assert "33 steps, 6 cycles" in shown(tmp_path / "stopped").output
    run_one(SMALL, tmp_path / "stopped")
    assert str(explain_run(tmp_path / "stopped")[1]) == str(explain_run(whole.folder)[1])


def test_cycles_after_the_checkpoint_are_forgotten_and_made_again(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.measure()
    for _ in range(22):
        run.advance()
    run.save()
    for _ in range(20):
        run.advance()
    run.measure()  # and then it is killed
    assert len(kept_cycles(tmp_path).cycles) == 8
    resumed = Run(SMALL, tmp_path)
    resumed.resume()
    assert [cycle.cycle for cycle in recent(resumed.optimizer)] == [1, 2, 3, 4]
    (tmp_path / CYCLES).write_text("{}", encoding="utf-8")
    resumed = Run(SMALL, tmp_path)
    resumed.resume()  # a file that cannot be read is no reason not to go on
    assert not recent(resumed.optimizer)


def test_a_run_at_its_very_beginning(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    assert f"there is no {CYCLES} in {tmp_path}: nothing has been measured yet" in refused(tmp_path)
    run.measure()
    assert said(tmp_path) == {"no-step"}


@pytest.mark.parametrize("optimizer", ["adaqn-modern", "sdlbfgs", "sqn"])
def test_the_family_is_explained_too(tmp_path, optimizer):
    run_one(replace(SMALL, optimizer=optimizer, lr=None, steps=20), tmp_path)
    assert explain_run(tmp_path)[0]["optimizer"] == optimizer
    assert "20 steps" in explain_run(tmp_path)[1].summary[0]


WHOLE = RunConfig(task="pinn", problem="wave", layers=1, hidden=6, points=40, steps=40, optimizer="adaqn-lbfgs")


@pytest.mark.parametrize("optimizer", ["adaqn-lbfgs", "adaqn-bfgs"])
def test_whole_gradients_are_explained_too(tmp_path, optimizer):
    run = open_run(replace(WHOLE, optimizer=optimizer), tmp_path)
    run.begin()
    result = run.train()
    text = shown(tmp_path).output
    assert text.startswith(f"{tmp_path}: finished\n{run.optimizer.explain()}\n")
    assert "the last step ended because the evaluations of the run (--steps) are spent" in text
    final, stats = result["final"], run.optimizer.stats
    assert (final["iterations"], final["restarts"], final["nonfinite"]) == (stats.iterations, stats.restarts, 0)
    assert final["reason"] == stats.reason
    (tmp_path / CYCLES).write_text('{"recent": 3}', encoding="utf-8")
    assert f"{tmp_path / CYCLES} is damaged" in refused(tmp_path)


def test_a_run_of_whole_gradients_that_goes_on_knows_its_iterations(tmp_path):
    def stop(progress):
        if progress.step >= 15:
            raise KeyboardInterrupt

    first = open_run(WHOLE, tmp_path)
    first.begin()
    with pytest.raises(KeyboardInterrupt):
        first.train(stop)
    known = len(recent(first.optimizer))
    assert known > 0
    second = open_run(WHOLE, tmp_path)
    second.resume()
    assert recent(second.optimizer) == recent(first.optimizer)


def test_what_is_no_run_of_the_family_is_one_clear_error(tmp_path):
    assert f"there is no run in {tmp_path}: a run is a folder with {CONFIG} in it" == refused(tmp_path)
    assert "there is no run in" in refused(tmp_path / "nowhere")
    run_one(replace(SMALL, optimizer="adam", steps=3), tmp_path / "adam")
    assert not (tmp_path / "adam" / CYCLES).exists()
    message = refused(tmp_path / "adam")
    assert "was made with adam, which has no cycles to explain: only adaqn, " in message
    assert "kfac" not in message
    run_one(replace(SMALL, steps=3), tmp_path / "damaged")
    for text in ("{", "[]", '{"cycles": 3}'):
        (tmp_path / "damaged" / CYCLES).write_text(text, encoding="utf-8")
        assert f"{tmp_path / 'damaged' / CYCLES} is damaged" in refused(tmp_path / "damaged")


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["stats"].update(steps="many"),
        lambda values: values["stats"].update(steps=None),
        lambda values: values["stats"].update(step_multiplier=[1]),
        lambda values: values["settings"].update(lr=3),
        lambda values: values["settings"].update(lr=["x"]),
        lambda values: values["settings"].update(size={"pairs": "x", "gradients": 0, "h0": 0, "others": 0}),
        lambda values: values["cycles"][0].update(outcome="nosuch"),
        lambda values: values["cycles"][0].update(candidate_loss={}),
        lambda values: values.update(skips_in_row=True),
        lambda values: values.update(cycles={"a": 1}),
    ],
)
def test_values_of_another_type_are_one_line(tmp_path, change):
    run_one(replace(SMALL, steps=12), tmp_path)
    unsealed(tmp_path / CYCLES, change)
    assert f"{tmp_path / CYCLES} is damaged, or of another version: not the record of an optimizer" in refused(tmp_path)
