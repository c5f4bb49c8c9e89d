"""Real kills at drawn moments: the run goes on, and ends with the same bits."""

import random
import shutil
import signal
import time

import pytest
import torch
from laboratory import weights, without_time

from adaqn.experiments.reading import read_lines
from adaqn.experiments.training.folder import CONFIG, METRICS, RESULT

OFTEN = {"ADAQN_CHECKPOINT_SECONDS": "0"}
"""A checkpoint after every step: the more is written, the more can be half done."""
SMALL = ["--limit", "3000", "--layers", "1", "--hidden", "8", "--batch-size", "4", "--length", "10", "--steps", "25"]
WHOLE = ["--layers", "1", "--hidden", "6", "--steps", "60"]
RUNS = {
    "adaqn": ["--evaluations", "30", *SMALL],
    "adam": ["--optimizer", "adam", "--carry-state", "--average", "0.9", "--model", "lstm", *SMALL],
    "kronecker": [
        "--optimizer",
        "adaqn-kronecker",
        "--schedule",
        "cosine",
        "--task",
        "mlp",
        *SMALL[2:8],
        "--steps",
        "25",
    ],
    "sqn": ["--optimizer", "sqn", "--evaluations", "30", *SMALL],
    "sfo": ["--optimizer", "sfo", *SMALL],
    "lbfgs": ["--task", "fit", "--problem", "regression", "--points", "40", "--optimizer", "adaqn-lbfgs", *WHOLE],
    "bfgs": ["--task", "pinn", "--problem", "wave", "--points", "30", "--optimizer", "adaqn-ssbroyden", *WHOLE],
    "resampled": ["--task", "pinn", "--points", "30", "--resample", "7", "--optimizer", "adaqn-lbfgs", *WHOLE],
    "recipe": ["--task", "fit", "--problem", "digits", "--limit", "50", "--optimizer", "adam-lbfgs", *WHOLE],
    "addition": ["--task", "addition", "--optimizer", "adagrad", *SMALL],
}


def killed_and_finished(folder, words, zygote, rng, expected, seconds, most):
    """Killed at most so often, each time somewhere in its remaining time; then left alone. Returns the kills."""
    kills = 0
    for _ in range(most):
        if (folder / RESULT).exists():
            break
        resume = ["--resume"] if (folder / CONFIG).exists() else []
        how = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        moment = rng.uniform(0.0, seconds)
        code = zygote.run(["train", *([] if resume else words), "--out", folder, *resume], folder.parent / "errors",
                          kill_after=moment, with_signal=how, environment=OFTEN)  # fmt: skip
        assert code in (0, -how), (folder.parent / "errors").read_text()
        kills += code != 0
    resume = ["--resume"] if (folder / CONFIG).exists() else []
    code = zygote.run(["train", *([] if resume else words), "--out", folder, *resume], folder.parent / "errors")
    assert code == 0, (folder.parent / "errors").read_text()
    assert without_time(read_lines(folder / METRICS)) == without_time(read_lines(expected / METRICS))
    for name, value in weights(expected).items():
        assert torch.equal(value, weights(folder)[name]), name
    assert not list(folder.glob(".*.tmp")), "what a kill left half written is still there"
    return kills


def kill_all(tmp_path, zygote, names, seed, rounds, most):
    rng, kills, processes = random.Random(seed), 0, 0
    for name in names:
        start = time.monotonic()
        whole = tmp_path / name
        assert zygote.run(["train", *RUNS[name], "--out", whole], tmp_path / "errors", environment=OFTEN) == 0, (
            tmp_path / "errors"
        ).read_text()
        seconds = time.monotonic() - start
        for _ in range(rounds):
            kills += killed_and_finished(tmp_path / "killed", RUNS[name], zygote, rng, whole, seconds, most)
            processes += most + 1
            shutil.rmtree(tmp_path / "killed")
    return {"kills": kills, "processes": processes}


def test_drawn_kills(tmp_path, zygote, record_property):
    found = kill_all(tmp_path, zygote, ("adaqn", "lbfgs"), seed=0, rounds=1, most=3)
    record_property("tried", found)
    assert found["kills"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_many_drawn_kills(tmp_path, zygote, record_property, name):
    """About twenty of each run: more than two hundred in all."""
    found = kill_all(tmp_path, zygote, (name,), seed=1, rounds=4, most=8)
    record_property("tried", found)
    assert found["kills"] > 0
