"""What people do to a laboratory: interrupts at any moment, changed files, damaged files, odd options."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import stopping
import torch
from filelock import FileLock
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.commands.compare import parse_optimizers
from adaqn.experiments.commands.sample import sample
from adaqn.experiments.data.text import word_corpus
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.results.report import collect
from adaqn.experiments.search.tune import for_optimizers, tune
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, LOCK, finished, folder_name
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.run import Run
from adaqn.experiments.training.storage import json_text, load_checkpoint

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=20, batch_size=8, length=20, evaluations=13, lr=0.01)


def same_run(one, other):
    """Everything but the time."""
    strip = [[{k: v for k, v in r.items() if k != "seconds"} for r in run.metrics] for run in (one, other)]
    assert strip[0] == strip[1]
    a, b = (load_checkpoint(run.folder / CHECKPOINT)["model"] for run in (one, other))
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words):
    """The one line that a person sees."""
    done = command(*words)
    assert done.exit_code != 0
    assert isinstance(done.exception, UserError | SystemExit), repr(done.exception)
    return str(done.exception) if isinstance(done.exception, UserError) else done.output


# ---------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("stop", [5, 10, 20])
def test_an_interrupt_at_an_evaluation_loses_nothing(tmp_path, stop):
    config = replace(SMALL, optimizer="adam")
    whole = run_one(config, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, stopping.at_step(stop))
    same_run(whole, run_one(config, tmp_path / "stopped"))


def test_ctrl_c_at_random_moments_ends_with_the_same_bits(tmp_path):
    config = replace(SMALL, optimizer="adaqn", hidden=32, steps=400, options={"cycle_length": 3})
    whole = run_one(config, tmp_path / "whole")
    code = (
        "import json, sys; from pathlib import Path; from adaqn.experiments.training.config import RunConfig;"
        "from adaqn.experiments.training.parallel import run_one;"
        "run_one(RunConfig.from_json(json.loads(sys.argv[1])), Path(sys.argv[2]))"
    )
    rng, interrupted = random.Random(0), 0
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", code, json_text(config.to_json()), str(tmp_path / "stopped")], stderr=subprocess.PIPE
        )
        while child.poll() is None and not (tmp_path / "stopped" / "metrics.jsonl").exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.4))
        if (tmp_path / "stopped" / "config.json").exists():
            child.send_signal(signal.SIGINT)
        child.communicate(timeout=120)
        interrupted += child.returncode != 0
        if finished(tmp_path / "stopped") is not None:
            break
    assert interrupted
    same_run(whole, run_one(config, tmp_path / "stopped"))


def test_two_processes_do_not_share_a_folder(tmp_path):
    with FileLock(tmp_path / LOCK), pytest.raises(UserError, match="another process is at work there"):
        run_one(SMALL, tmp_path)


# ---------------------------------------------------------------------- data that changes


def test_runs_on_data_that_has_changed_are_not_reused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words here and there " * 500)
    config = replace(SMALL, data=str(text), limit=None)
    run_one(config, tmp_path / "run")
    assert len(sample(tmp_path / "run", 5)) == 5
    text.write_text("other words, not those; " * 500)
    with pytest.raises(UserError, match="was made with other data"):
        run_one(config, tmp_path / "run")
    with pytest.raises(UserError, match="has changed since the run"):
        sample(tmp_path / "run", 5)


def test_the_checksum_of_words_knows_where_they_end(tmp_path):
    for name, text in (("one", "ab c "), ("two", "a bc ")):
        (tmp_path / name).write_text(text * 200)
    assert word_corpus(str(tmp_path / "one")).sha256 != word_corpus(str(tmp_path / "two")).sha256


@pytest.mark.parametrize("largest", [5, 20, 21, 22, 40])
def test_the_vocabulary_is_never_larger_than_asked_for(tmp_path, largest):
    words = [f"w{i % 20}" for i in range(900)] + [f"late{i}" for i in range(100)]
    (tmp_path / "text").write_text(" ".join(words))
    corpus = word_corpus(str(tmp_path / "text"), largest=largest)
    assert len(corpus.vocabulary) <= largest
    assert "<unk>" in corpus.vocabulary


# ---------------------------------------------------------------------- the same run is the same run


def test_the_step_size_used_is_in_the_configuration(tmp_path):
    done = run_one(replace(SMALL, optimizer="adam", lr=None, steps=2), tmp_path / "run")
    assert done.result["config"]["lr"] == TABLE["adam"].lr
    given = replace(SMALL, optimizer="adam", lr=TABLE["adam"].lr)
    assert folder_name(replace(given, lr=None)) == folder_name(given)
    assert resolved(replace(given, lr=None)) == resolved(given)


@pytest.mark.parametrize("optimizer", ["shampoo", "soap", "muon"])
def test_rivals_from_another_package_resume_with_the_same_bits(tmp_path, optimizer):
    config = replace(SMALL, optimizer=optimizer)
    whole = run_one(config, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, stopping.at_step(13))
    resumed = run_one(config, tmp_path / "stopped")
    assert [r["test_loss"] for r in resumed.metrics] == [r["test_loss"] for r in whole.metrics]


def test_a_step_size_reaches_every_parameter_of_muon():
    slow, fast = (Run(replace(SMALL, optimizer="muon", lr=lr)) for lr in (1e-3, 1e-2))
    for a, b in zip(slow.optimizer.param_groups, fast.optimizer.param_groups, strict=True):
        assert b["lr"] == pytest.approx(10 * a["lr"])


def test_a_search_with_other_settings_is_refused(tmp_path):
    tune(for_optimizers(replace(SMALL, steps=2), ["sgd"]), 1, tmp_path, workers=1)
    with pytest.raises(UserError, match=r"begun with other settings \(steps was 2, and is 3 now"):
        tune(for_optimizers(replace(SMALL, steps=3), ["sgd"]), 1, tmp_path, workers=1)


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


# ---------------------------------------------------------------------- files


def test_a_run_that_diverges_leaves_valid_json(tmp_path):
    config = replace(SMALL, optimizer="sgd", lr=1e30, model="relu")
    done = run_one(config, tmp_path / "run")
    assert done.result["final"]["test_loss"] != done.result["final"]["test_loss"]

    def refuse(word):
        raise AssertionError(word)

    for name in ("result.json", "metrics.jsonl"):
        for line in (tmp_path / "run" / name).read_text().splitlines() if name.endswith("l") else [None]:
            json.loads(line or (tmp_path / "run" / name).read_text(), parse_constant=refuse)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{}"),
        ("config.json", b"[]"),
        ("config.json", b'{"run": {"layers": "5"}}'),
        ("config.json", b'{"run": {"seed": "x"}}'),
        ("metrics.jsonl", b"\xff\xfe\x00"),
        ("metrics.jsonl", b"[1]\n[2]\n"),
        ("result.json", b"{}"),
        ("result.json", b"null"),
        ("checkpoint.pt", b"junk"),
    ],
)
def test_damaged_files_are_one_line_and_the_report_goes_on(tmp_path, name, content):
    config = replace(SMALL, steps=4)
    run_one(config, tmp_path / "runs" / "good")
    folder = run_one(replace(config, seed=1), tmp_path / "runs" / "bad").folder
    if name != "result.json":
        (folder / "result.json").unlink()
    (folder / name).write_bytes(content)
    assert refused("train", "--resume", "--out", folder)
    assert (folder / name).read_bytes() == content
    done, others = collect(tmp_path / "runs")
    assert [run.folder.name for run in done] == ["good"]
    assert [other["folder"] for other in others] == ["bad"]


def test_metrics_that_were_emptied_are_noticed(tmp_path):
    folder = run_one(replace(SMALL, steps=10), tmp_path / "run").folder
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").write_text("")
    assert "has 0 evaluations" in refused("train", "--resume", "--out", folder)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"cells": {"addition/embedded/tanh/staged": {"curves": {"adaqn": 3}}}}']
)
def test_a_damaged_tuning_file_is_one_line(tmp_path, content):
    (tmp_path / "tuning.json").write_text(content)
    assert "tuning" in refused("figure", "addition", "--tuning", tmp_path / "tuning.json", "--out", tmp_path)


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--length", "0"], "length must be at least 1, got 0"),
        (["train", "--seed", str(10**16)], "seed must be from 0"),
        (["train", "--threads", "99999999999"], "threads must be from 1 to 1024"),
        (["train", "--device", "meta"], "holds no numbers"),
        (["train", "--task", "mlp", "--side", "3"], "side is for --data mnist"),
        (["train", "--task", "pixel-mnist", "--length", "7"], "length is for texts"),
        (["train", "--optimizer", "soap", "--option", "foo=1"], "soap has no option foo"),
        (["train", "--optimizer", "muon", "--option", "foo=1"], "muon has no option foo"),
        (["train", "--optimizer", "kfac", "--option", "foo=1"], "kfac has no option foo"),
        (["train", "--option", "lr=0.5"], "give the step size as --lr"),
        (["train", "--option", "monitor=5"], "--monitor-size"),
        (["train", "--optimizer", "adam", "--option", "foreach=true", "--option", "fused=true"], "adam"),
        (["train", "--optimizer", "adam", "--option", "capturable=true", "--steps", "2"], "adam with"),
        (["compare", "--optimizers", "adam,adam"], "'adam' is given twice"),
        (["compare", "--workers", "0"], "workers must be at least 1"),
        (["tune", "--optimizers", "adagrad:0.5"], "give names alone"),
        (["tune", "--workers", "0"], "workers must be at least 1"),
        (["tune", "--data", "nosuch.txt"], "no text called 'nosuch.txt'"),
        (["tune", "--out", "/proc/tune"], "cannot make the folder"),
        (["figure", "addition", "--workers", "0"], "workers must be at least 1"),
        (["train", "--data", "nietzsche", "--data-dir", "/nonexistent"], "there is no folder /nonexistent"),
    ],
)
def test_odd_options_are_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    small = ["--limit", "12000", "--layers", "1", "--hidden", "8"] if words[0] != "figure" else []
    assert said in refused(*words, *small)


def test_a_text_with_a_long_name_has_a_folder_of_its_own():
    assert len(folder_name(replace(SMALL, data="/x/" + "y" * 249 + ".txt"))) < 120


def test_the_same_optimizer_with_two_step_sizes_is_two():
    assert len(parse_optimizers("adam:0.1,adam:0.2")) == 2


def test_the_seconds_between_checkpoints_must_be_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAQN_CHECKPOINT_SECONDS", "soon")
    with pytest.raises(UserError, match="must be a number of seconds of at least 0, got 'soon'"):
        run_one(SMALL, tmp_path / "run")
