"""The folder of a run: claimed, whole, and of the data that it was made with."""

import json
import os
from dataclasses import replace

import pytest
from laboratory import refused

from adaqn.experiments.commands.sample import drawn_text
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.results.report import collect
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import claimed, folder_name
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=20, batch_size=8, length=20, evaluations=13, lr=0.01)


def test_two_processes_do_not_share_a_folder(tmp_path):
    with claimed(tmp_path), pytest.raises(UserError, match=rf"process {os.getpid()} of .* is at work there"):
        run_one(SMALL, tmp_path)


def test_runs_on_data_that_has_changed_are_not_reused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words here and there " * 500)
    config = replace(SMALL, data=str(text), limit=None)
    run_one(config, tmp_path / "run")
    assert len(drawn_text(tmp_path / "run", 5)) == 5
    text.write_text("other words, not those; " * 500)
    with pytest.raises(UserError, match="was made with other data"):
        run_one(config, tmp_path / "run")
    with pytest.raises(UserError, match="has changed since the run"):
        drawn_text(tmp_path / "run", 5)


def test_the_step_size_used_is_in_the_configuration(tmp_path):
    done = run_one(replace(SMALL, optimizer="adam", lr=None, steps=2), tmp_path / "run")
    assert done.result["config"]["lr"] == TABLE["adam"].lr
    given = replace(SMALL, optimizer="adam", lr=TABLE["adam"].lr)
    assert folder_name(replace(given, lr=None)) == folder_name(given)
    assert resolved(replace(given, lr=None)) == resolved(given)


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


def test_a_text_with_a_long_name_has_a_folder_of_its_own():
    assert len(folder_name(replace(SMALL, data="/x/" + "y" * 249 + ".txt"))) < 120
