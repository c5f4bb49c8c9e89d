"""A run that was killed or interrupted at any moment goes on with the same bits."""

import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from laboratory import ADAQN, at_step, command, refused, same_run, wait_until, weights, without_time

from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import read_lines
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, METRICS, finished
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.run import Run
from copies import CONTEXT
from limits import LIMIT

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=20, batch_size=8, length=20, evaluations=13, lr=0.01)


RESUMED = [
    pytest.param(optimizer, carry_state, marks=[pytest.mark.slow] * ((optimizer, carry_state) == ("hf", False)))
    for optimizer in ("adaqn", "adam", "lbfgs", "sdlbfgs", "sqn", "sfo", "hf", "kfac")
    for carry_state in (False, True)
]
"""A run of Hessian-Free that carries its state is enough for every time: its steps are the longest."""


@pytest.mark.parametrize("optimizer, carry_state", RESUMED)
def test_a_resumed_run_has_the_same_bits(tmp_path, optimizer, carry_state):
    config = replace(SMALL, optimizer=optimizer, carry_state=carry_state, model="lstm", evaluations=7)
    if optimizer == "sfo" and carry_state:
        with pytest.raises(UserError, match="leave out carry_state"):
            Run(config)
        return
    whole = run_one(config, tmp_path / "whole")
    for stop in (7,) if carry_state else (1, 11):
        folder = tmp_path / f"stopped-{stop}"
        run = Run(config, folder)
        run.begin()

        with pytest.raises(KeyboardInterrupt):
            run.train(at_step(stop))
        resumed = run_one(config, folder)
        assert without_time(resumed.metrics) == without_time(whole.metrics)
        expected = weights(tmp_path / "whole")
        assert all(torch.equal(value, expected[name]) for name, value in weights(folder).items())


@pytest.mark.slow  # as tests/experiments/fuzz/test_drawn_kills.py, whose processes are forked instead of started
def test_killed_at_random_steps_it_ends_with_the_same_bits(tmp_path):
    """Real SIGKILLs to a real process."""
    size = ["--layers", "1", "--hidden", "16", "--limit", "20000", "--batch-size", "8"]
    command = [*ADAQN, "train", *size, "--steps", "240", "--evaluations", "30"]
    subprocess.run([*command, "--out", tmp_path / "whole"], check=True, capture_output=True)
    folder, chance = tmp_path / "killed", random.Random(5)
    environment = {**os.environ, "ADAQN_CHECKPOINT_SECONDS": "0.1"}
    measured = 0
    for _ in range(3):
        measured += chance.randint(15, 45)
        resume = ["--resume"] if (folder / "config.json").exists() else []
        process = subprocess.Popen([*command, "--out", folder, *resume], stderr=subprocess.DEVNULL, env=environment)
        wait_until(lambda: len(read_lines(folder / METRICS)) >= measured, process)  # noqa: B023 - called at once
        process.kill()
        process.communicate()
    assert torch.load(folder / CHECKPOINT, weights_only=True)["step"] < 240
    subprocess.run([*command, "--out", folder, "--resume"], check=True, capture_output=True)
    assert without_time(read_lines(folder / METRICS)) == without_time(read_lines(tmp_path / "whole" / METRICS))
    expected = weights(tmp_path / "whole")
    assert all(torch.equal(value, expected[name]) for name, value in weights(folder).items())


def test_interrupted_it_saves_and_exits_130(tmp_path):
    size = ["--limit", "20000", "--layers", "1", "--hidden", "8", "--evaluations", "9"]
    command = [*ADAQN, "train", "--steps", "1000000", *size, "--out", tmp_path / "run"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(read_lines(tmp_path / "run" / METRICS)) > 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)["step"] > 0


def test_a_damaged_checkpoint_is_named_and_left(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.save()
    path = tmp_path / CHECKPOINT
    half = path.read_bytes()[:500]
    path.write_bytes(half)
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged.*left in place"):
        Run(SMALL, tmp_path).resume()
    assert path.read_bytes() == half


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.save()
    with pytest.raises(UserError, match="is of another run"):
        Run(replace(SMALL, lr=0.5), tmp_path).resume()


@pytest.mark.parametrize("what", ["full", "gone"])
def test_a_disk_that_takes_nothing_leaves_the_last_good_checkpoint(tmp_path, what, monkeypatch):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.save()
    before = (tmp_path / CHECKPOINT).read_bytes()
    if what == "full":

        def no_space(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
    else:
        run.folder = Path("/proc/adaqn")
    with pytest.raises(UserError, match=r"cannot write .*checkpoint\.pt"):
        run.save()
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("stop", [5, 10, 20])
def test_an_interrupt_at_an_evaluation_loses_nothing(tmp_path, stop):
    config = replace(SMALL, optimizer="adam")
    whole = run_one(config, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, at_step(stop))
    same_run(whole, run_one(config, tmp_path / "stopped"))


def test_ctrl_c_at_random_moments_ends_with_the_same_bits(tmp_path):
    config = replace(SMALL, optimizer="adaqn", hidden=32, steps=400, evaluations=50, options={"cycle_length": 3})
    whole = run_one(config, tmp_path / "whole")
    rng, interrupted, measured = random.Random(0), 0, 0
    for _ in range(3):
        measured += rng.randint(1, 12)  # by steps, not by time: no machine is too fast
        child = CONTEXT.Process(target=run_one, args=(config, tmp_path / "stopped"), daemon=True)
        child.start()
        while child.exitcode is None and len(read_lines(tmp_path / "stopped" / METRICS)) < measured:
            time.sleep(0.01)
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGINT)
        child.join(LIMIT)
        interrupted += child.exitcode != 0
        if finished(tmp_path / "stopped") is not None:
            break
    assert interrupted
    same_run(whole, run_one(config, tmp_path / "stopped"))


@pytest.mark.parametrize("optimizer", ["shampoo", "soap", "muon"])
def test_rivals_from_another_package_resume_with_the_same_bits(tmp_path, optimizer):
    config = replace(SMALL, optimizer=optimizer)
    whole = run_one(config, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, at_step(13))
    resumed = run_one(config, tmp_path / "stopped")
    assert [r["test_loss"] for r in resumed.metrics] == [r["test_loss"] for r in whole.metrics]


def test_a_resumed_run_cannot_be_changed(tmp_path):
    flags = ["--steps", 4, "--limit", 12000, "--layers", 1, "--hidden", 8, "--out", tmp_path / "run"]
    assert command("train", *flags, "--optimizer", "adam", "--json").exit_code == 0
    assert command("train", "--resume", "--out", tmp_path / "run", "--json").exit_code == 0
    assert command("train", "--resume", "--steps", 4, "--out", tmp_path / "run", "--json").exit_code == 0
    assert "has lr = 0.001, not 0.5" in refused("train", "--resume", "--lr", 0.5, "--out", tmp_path / "run")
    assert "has optimizer = " in refused("train", "--resume", "--optimizer", "sgd", "--out", tmp_path / "run")


def test_a_resumed_run_may_be_given_the_options_that_it_has(tmp_path):
    flags = ["--steps", 4, "--limit", 12000, "--layers", 1, "--hidden", 8, "--out", tmp_path / "run"]
    assert command("train", *flags, "--option", "memory_size=2", "--json").exit_code == 0
    again = ["train", "--resume", "--out", tmp_path / "run", "--option"]
    assert command(*again, "memory_size=2", "--json").exit_code == 0
    assert "has options = " in refused(*again, "memory_size=9")
