"""Every file that a command reads, with drawn damage: a line, or exactly what would have been without it."""

import gzip
import json
import os
import random
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from damaging import BYTES, damage, restored
from drawing import CELLS, assert_told, outcome
from laboratory import at_step, weights, without_time
from zygote import NOBODY

from adaqn.experiments.data.digits import read_idx
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import read_json, read_lines
from adaqn.experiments.results.report import report_data
from adaqn.experiments.schema import anything
from adaqn.experiments.training.claims import CLAIM
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import ASKED, CHECKPOINT, CONFIG, CYCLES, DONE, MEASUREMENT, METRICS, RESULT
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(
    layers=1, hidden=4, limit=2_000, steps=6, batch_size=4, length=10, lr=0.01, options={"cycle_length": 2}
)
RUNS = {
    "adaqn": SMALL,
    "adam": replace(SMALL, optimizer="adam", options={}, carry_state=True, average=0.9),
    "whole": RunConfig(
        task="pinn", problem="wave", layers=1, hidden=4, points=20, steps=12, optimizer="adaqn-lbfgs",
        options={"max_iter": 2},
    ),
}  # fmt: skip
TINY = ["--limit", 2_000, "--layers", 1, "--hidden", 4, "--batch-size", 4, "--length", 10]
SCHEMAS = {RESULT: DONE, CONFIG: ASKED, CYCLES: anything}
FILES = (CONFIG, METRICS, CHECKPOINT, CYCLES, RESULT, f"{CLAIM}.0")


def end_of(folder):
    """What a run came to: all but the time."""
    return without_time(read_lines(folder / METRICS)), weights(folder)


def same_end(one, other):
    return one[0] == other[0] and all(torch.equal(value, other[1][name]) for name, value in one[1].items())


def stop_in_the_middle(progress):
    if progress.step >= progress.steps // 2 > 0:
        raise KeyboardInterrupt


@pytest.fixture
def runs(here):
    """Each run finished and in the middle, in folders to copy from; and what it comes to."""
    ends = {}
    for name, config in RUNS.items():
        run_one(config, here / "good" / name / "finished")
        with pytest.raises(KeyboardInterrupt):
            run_one(config, here / "good" / name / "stopped", None, stop_in_the_middle)
        ends[name] = end_of(here / "good" / name / "finished")
    return here, ends


def try_runs(here, ends, seed, count):
    """Damage one file of a run, give it to a command, and look at what comes out."""
    rng = random.Random(seed)
    for _ in range(count):
        name, state = rng.choice(sorted(RUNS)), rng.choice(("finished", "stopped", "stopped"))
        folder = here / "runs" / "one"
        restored(here / "good" / name / state, folder)
        file = rng.choice([file for file in FILES if (folder / file).exists()])
        what = damage(rng, folder / file)
        how = rng.choice((["train", "--resume", "--out"], ["train", "--resume", "--out"], ["sample", "--count", "3"],
                          ["explain"], ["report"]))  # fmt: skip
        code, _, _ = outcome([*how, here / "runs" if how == ["report"] else folder])
        case = (seed, name, state, file, what, how)
        if how == ["report"]:
            assert code == 0 or what == "nothing", case
        elif state == "finished" and file == CHECKPOINT:
            pass  # nobody looks at it any more
        elif how[0] == "train" and code == 0 and (what in BYTES or file in (METRICS, CYCLES)):
            assert same_end(end_of(folder), ends[name]), f"another run is told to be this one: {case}"
    return count


def test_damaged_files_of_runs(runs, record_property):
    record_property("tried", {"damaged files": try_runs(*runs, seed=0, count=40)})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_damaged_files_of_runs(runs, record_property, seed):
    record_property("tried", {"damaged files": try_runs(*runs, seed, count=300)})


# ---------------------------------------------------------------------- many runs, some of them bad

SEEDS = 3


@pytest.fixture
def many(here):
    """Several seeds of each run, to copy from."""
    for name, config in RUNS.items():
        for seed in range(SEEDS):
            run_one(replace(config, seed=seed), here / "good" / f"{name}-{seed}")
    return here


def try_reports(here, seed, count):
    """Damage files of some runs: every other run is shown, and each of these is shown or named."""
    rng = random.Random(seed)
    for _ in range(count):
        restored(here / "good", here / "runs")
        names = sorted(path.name for path in (here / "runs").iterdir())
        bad = rng.sample(names, rng.randint(1, len(names)))
        for name in bad:
            for file in rng.sample((METRICS, RESULT, CHECKPOINT), rng.randint(1, 2)):
                if (here / "runs" / name / file).is_file():
                    damage(rng, here / "runs" / name / file)
        outcome(["report", here / "runs"])
        data = report_data(here / "runs")
        told = {other["folder"] for other in data["unfinished"]}
        assert told <= set(bad), (seed, told, bad)
        assert data["runs"] + data["copies"] + len(told) >= len(names) - len(gone(here / "runs")), (seed, told, bad)
    return count


def gone(root):
    """Folders without the files by which a run is known."""
    return [path for path in root.iterdir() if path.is_dir() and not list(path.glob(RESULT)) + list(path.glob(METRICS))]


def test_reports_of_damaged_runs(many, record_property):
    record_property("tried", {"reports of damaged runs": try_reports(many, seed=0, count=8)})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_reports_of_damaged_runs(many, record_property, seed):
    record_property("tried", {"reports of damaged runs": try_reports(many, seed, count=150)})


# ---------------------------------------------------------------------- what is read without a command


def try_readers(here, seed, count):
    """The same through the readers alone: thousands in seconds."""
    rng, bad = random.Random(seed), here / "bad"
    bad.mkdir(exist_ok=True)
    good = here / "good" / "adaqn" / "finished"
    images = bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2]) + bytes(range(24))
    packed = gzip.compress(images)
    expected = read_idx(images, 3)
    for _ in range(count):
        kind = rng.choice((RESULT, METRICS, CYCLES, CONFIG, "idx", "idx.gz"))
        if kind.startswith("idx"):
            data = BYTES[rng.choice(sorted(BYTES))](rng, packed if kind == "idx.gz" else images)
            try:
                found = read_idx(data, 3)
            except UserError:
                continue
            assert kind == "idx" or torch.equal(found, expected), "gzip's checksum was not looked at"
            continue
        shutil.copy(good / kind, bad / kind)
        what = damage(rng, bad / kind)
        try:
            if kind == METRICS:
                read_lines(bad / kind, MEASUREMENT)
            else:
                found = read_json(bad / kind, SCHEMAS[kind])
                assert what not in BYTES or found == read_json(good / kind), (seed, kind, what)
        except UserError:
            pass
        if (bad / kind).is_dir():
            (bad / kind).rmdir()
        else:
            (bad / kind).unlink(missing_ok=True)
    return count


def test_damaged_files_and_their_readers(runs, record_property):
    record_property("tried", {"damaged files read": try_readers(runs[0], seed=0, count=400)})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_damaged_files_and_their_readers(runs, record_property, seed):
    record_property("tried", {"damaged files read": try_readers(runs[0], seed, count=1_000)})


# ---------------------------------------------------------------------- studies, tunings, texts


@pytest.fixture
def study(here):
    (here / "good").mkdir()
    (here / "good" / "cells.json").write_text(json.dumps(CELLS))
    (here / "good" / "text.txt").write_text("some words here and there\n" * 100, encoding="utf-8")
    (here / "good" / "page.md").write_text("# Results\n\n<!-- tables: begin -->\n<!-- tables: end -->\n")
    found = {"cells": {"mlp/embedded/tanh/staged": {"base": {}, "curves": {"adaqn": {"best": {"lr": 0.1}}}}}}
    (here / "good" / "tuning.json").write_text(json.dumps(found))
    words = ["study", "--cells", here / "good" / "cells.json", "--results", here / "good" / "results"]
    assert outcome([*words, "--out", here / "out"])[0] == 0
    assert outcome([*words, "--time"])[0] == 0
    return here


def try_studies(here, seed, count):
    rng = random.Random(seed)
    files = (
        "cells.json",
        "results/tiny/sgd.constant.json",
        "results/tiny/timing.json",
        "text.txt",
        "tuning.json",
        "page.md",
    )
    for _ in range(count):
        restored(here / "good", here / "one")
        file = rng.choice(files)
        damage(rng, here / "one" / file)
        outcome(reading_words(rng, here / "one", file))
    return count


def reading_words(rng, one, file):
    """A command that reads this file."""
    if file == "text.txt":
        words = ["train", "--data", one / file, "--layers", 1, "--hidden", 2, "--batch-size", 2, "--length", 4]
        return [*words, "--steps", 1, "--optimizer", "sgd", "--out", one / "run"]
    if file == "tuning.json":
        return ["figure", "addition", "--tuning", one / file, "--out", one / "figure"]
    what = rng.choice((["--plan"], ["--page", one / "page.md"]))
    return ["study", "--cells", one / "cells.json", "--results", one / "results", "--out", one / "out", "--json", *what]


def test_damaged_files_of_studies(study, record_property):
    record_property("tried", {"damaged files": try_studies(study, seed=0, count=30)})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_damaged_files_of_studies(study, record_property, seed):
    record_property("tried", {"damaged files": try_studies(study, seed, count=200)})


# ---------------------------------------------------------------------- permissions


@pytest.fixture
def open_folder():
    """One that anybody may enter: pytest's own are for their owner alone, and permissions do not bind root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o777)
    shutil.rmtree(folder)


def give_away(folder):
    """To the one whom permissions bind."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)


def test_what_may_not_be_read_or_written_is_one_line(open_folder, zygote, record_property):
    """As root the commands run as nobody, in processes of their own."""
    if os.geteuid() == 0 and os.name != "posix":
        pytest.skip("permissions do not bind root, and here is nobody else to be")
    rng, errors = random.Random(0), open_folder / "errors"
    with pytest.raises(KeyboardInterrupt):
        run_one(SMALL, open_folder / "good" / "run", None, at_step(3))
    for _ in range(24):
        folder = open_folder / "runs" / "run"
        restored(open_folder / "good", open_folder / "runs")
        errors.write_bytes(b"")
        errors.chmod(0o666)
        give_away(open_folder / "runs")
        closed = rng.choice([folder / name for name in (CONFIG, METRICS, CHECKPOINT, CYCLES)] + [folder, folder.parent])
        mode = rng.choice((0o000, 0o444, 0o111) if closed.is_dir() else (0o000, 0o222))
        closed.chmod(mode)
        words = rng.choice((["train", "--resume", "--out", folder], ["sample", folder, "--count", 2],
                            ["explain", folder], ["report", folder.parent],
                            ["train", *TINY, "--steps", 1, "--out", folder / "new"],
                            ["report", folder.parent, "--out", folder / "page.html"]))  # fmt: skip
        code = zygote.run(words, errors, as_nobody=os.geteuid() == 0, kill_after=300)
        assert code >= 0, f"it hung: {words}"
        if code:
            assert_told(errors.read_text(encoding="utf-8"), words)
        for path in (folder.parent, folder):
            path.chmod(0o777)
        record_property("tried", {"processes": 1})
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
