"""Real kills at drawn moments: the run goes on, and ends with the same bits."""

import random
import shutil
import signal
import time
from collections import Counter

import pytest
import torch
from laboratory import weights, without_time

from adaqn.experiments.reading import read_lines
from adaqn.experiments.training.folder import CONFIG, METRICS, RESULT

OFTEN = {"ADAQN_CHECKPOINT_SECONDS": "0"}
"""A checkpoint after every step: the more is written, the more can be half done."""
SMALL = ["--limit", "3000", "--layers", "1", "--hidden", "8", "--batch-size", "4", "--length", "10", "--steps", "40"]
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
    """Killed at most so often, each time somewhere in its remaining time; then left alone. Returns what was tried."""
    kills, processes = 0, 1
    while processes <= most and not (folder / RESULT).exists():
        processes += 1
        resume = ["--resume"] if (folder / CONFIG).exists() else []
        how = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        moment = seconds * rng.random() ** 2  # what is left becomes shorter
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
    return {"kills": kills, "processes": processes}


def kill_all(tmp_path, zygote, name, seed, wanted):
    """Until so many kills have hit a run at work; those that come too late do not count."""
    rng, found = random.Random(seed), Counter()
    start, whole, errors = time.monotonic(), tmp_path / name, tmp_path / "errors"
    assert zygote.run(["train", *RUNS[name], "--out", whole], errors, environment=OFTEN) == 0, errors.read_text()
    seconds = time.monotonic() - start
    while found["kills"] < wanted and found["processes"] < 10 * wanted:
        found.update(killed_and_finished(tmp_path / "killed", RUNS[name], zygote, rng, whole, seconds, most=8))
        shutil.rmtree(tmp_path / "killed")
    assert found["kills"] >= wanted, f"nothing is tried if all come too late: {found}"
    return dict(found)


@pytest.mark.parametrize("name", ["adaqn", "lbfgs"])
def test_drawn_kills(tmp_path, zygote, record_property, name):
    record_property("tried", kill_all(tmp_path, zygote, name, seed=0, wanted=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_many_drawn_kills(tmp_path, zygote, record_property, name):
    """More than two hundred in all."""
    record_property("tried", kill_all(tmp_path, zygote, name, seed=1, wanted=22))
