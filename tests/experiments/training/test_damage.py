"""Damaged files of a run: a changed bit is noticed, what the checkpoint knows is made whole, nothing is a traceback."""

import io
import json
import os
import random
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from laboratory import at_step, command, refused, same_run, unsealed

from adaqn.experiments.errors import UserError
from adaqn.experiments.training import storage
from adaqn.experiments.training.checkpoint import load_checkpoint, save_checkpoint
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, CONFIG, METRICS, RESULT, finished
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(
    optimizer="adam", layers=1, hidden=8, limit=12_000, steps=8, batch_size=8, length=20, evaluations=40, lr=0.01
)
WHOLE = RunConfig(task="pinn", problem="wave", layers=1, hidden=4, points=20, steps=12, optimizer="adaqn-lbfgs")


@pytest.fixture
def stopped(tmp_path):
    """A run in the middle."""
    with pytest.raises(KeyboardInterrupt):
        run_one(SMALL, tmp_path / "run", None, at_step(4))
    return tmp_path / "run"


@pytest.fixture
def expected(tmp_path):
    return run_one(SMALL, tmp_path / "whole")


def flipped(data, bit):
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def old_checkpoint(path, change):
    """Without a checksum behind it, as earlier versions wrote it, and with other entries."""
    state = torch.load(path, weights_only=True)
    change(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.write_bytes(buffer.getvalue())


def test_every_changed_bit_of_a_checkpoint_is_noticed(stopped):
    path, rng = stopped / CHECKPOINT, random.Random(0)
    good = path.read_bytes()
    end = 8 * (len(good) - 78)  # behind it is the checksum
    for bit in [0, end - 1, *rng.sample(range(end), 80)]:
        path.write_bytes(flipped(good, bit))
        with pytest.raises(UserError, match=r"checkpoint\.pt is damaged"):
            load_checkpoint(path)
    path.write_bytes(flipped(good, end + 8 * 40))
    assert "is damaged" in refused("train", "--resume", "--out", stopped)


def test_a_changed_bit_of_a_checkpoint_without_a_checksum_is_noticed_in_its_tensors(stopped):
    path = stopped / CHECKPOINT
    old_checkpoint(path, lambda state: None)
    good = path.read_bytes()
    weight = torch.load(path, weights_only=True)["model"]["output.weight"].numpy().tobytes()
    path.write_bytes(flipped(good, 8 * good.index(weight) + 3))
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged: .*data/\d+ does not have its checksum"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", [CONFIG, RESULT])
def test_every_changed_bit_of_what_is_asked_for_and_found_is_noticed(tmp_path, name):
    folder = run_one(SMALL, tmp_path / "run").folder
    good, values = (folder / name).read_bytes(), json.loads((folder / name).read_bytes())
    for bit in random.Random(1).sample(range(8 * len(good)), 100):
        (folder / name).write_bytes(flipped(good, bit))
        done = command("train", "--resume", "--out", folder, "--json")
        if done.exit_code == 0:
            assert json.loads((folder / name).read_bytes()) == values, "another value was taken as it is"
        else:
            assert isinstance(done.exception, UserError)
            assert name in str(done.exception)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00", b"[1]\n[2]\n", b'{"step": 0}\n', "folder"])
def test_metrics_that_were_lost_cut_or_damaged_are_made_whole_from_the_checkpoint(stopped, expected, content):
    path = stopped / METRICS
    before = path.read_bytes()
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    if content == "folder":
        path.mkdir()
        assert "cannot write" in refused("train", "--resume", "--out", stopped)
        path.rmdir()
    same_run(run_one(SMALL, stopped), expected)
    assert path.read_bytes().startswith(before)


def test_metrics_that_know_more_than_the_checkpoint_are_cut(stopped, expected):
    with (stopped / METRICS).open("a") as file:
        file.write('{"step": 7}\n{"st')
    same_run(run_one(SMALL, stopped), expected)


def test_metrics_of_a_checkpoint_that_does_not_hold_them_are_taken_as_far_as_they_go(stopped, expected):
    old_checkpoint(stopped / CHECKPOINT, lambda state: state.pop("metrics"))
    lines = (stopped / METRICS).read_text().splitlines()
    (stopped / METRICS).write_text(lines[0] + "\n")
    done = run_one(SMALL, stopped)
    assert [r["step"] for r in done.metrics] == [0, *(r["step"] for r in expected.metrics if r["step"] > 4)]
    assert f"had 1 of {len(lines)} evaluations" in (stopped / "warnings.txt").read_text()


def test_metrics_of_a_finished_run_that_were_damaged_are_made_again(tmp_path, expected):
    folder = expected.folder
    good = (folder / METRICS).read_bytes()
    (folder / METRICS).write_bytes(good.replace(b"1", b"2", 1))
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged: .*Delete .*result.json"):
        finished(folder)
    (folder / RESULT).unlink()
    assert command("train", "--resume", "--out", folder).exit_code == 0
    assert (folder / METRICS).read_bytes() == good
    same_run(finished(folder), expected)


def test_what_was_written_is_on_the_disk_with_its_name(tmp_path, monkeypatch):
    """Every file and every folder with a new name in it is told to reach the disk."""
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.write_atomically(tmp_path / "a" / "b" / "file", b"1")
    assert synced[:2] == [str(tmp_path), str(tmp_path / "a")]
    assert synced[2].endswith(".tmp")
    assert synced[3:] == [str(tmp_path / "a" / "b")]
    synced.clear()
    storage.append(tmp_path / "a" / "lines", b"1\n")
    assert synced == [str(tmp_path / "a" / "lines"), str(tmp_path / "a")]
    storage.append(tmp_path / "a" / "lines", b"2\n")
    assert len(synced) == 3
    assert (tmp_path / "a" / "lines").read_bytes() == b"1\n2\n"


def test_nothing_takes_the_place_of_a_device_or_a_folder(tmp_path):
    """As root one could."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder", Path(), Path(".."), Path("/")):
        with pytest.raises(UserError, match="there is something that is no file; it was left in place"):
            storage.write_atomically(path, b"1")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "folder").is_dir()


CHANGES = {
    "step of a billion": lambda s: s.update(step=10**9),
    "step below 0": lambda s: s.update(step=-1),
    "step as text": lambda s: s.update(step="4"),
    "step as a tensor": lambda s: s.update(step=torch.ones(3)),
    "step of thousands of digits": lambda s: s.update(step=10**5_000),
    "seconds": lambda s: s.update(seconds=float("nan")),
    "seconds without end": lambda s: s.update(seconds=10**400),
    "measured": lambda s: s.update(measured=None),
    "metrics": lambda s: s.update(metrics=3),
    "metrics that are no JSON": lambda s: s.update(metrics="{\n"),
    "loss_sum": lambda s: s.update(loss_sum=torch.zeros(2, dtype=torch.float64)),
    "summed": lambda s: s.update(summed=[1]),
    "model": lambda s: s.update(model=[1, 2]),
    "a weight of another shape": lambda s: s["model"].update({"output.weight": torch.ones(1)}),
    "a weight too few": lambda s: s["model"].pop("output.weight"),
    "optimizer": lambda s: s.update(optimizer=None),
    "optimizer without groups": lambda s: s["optimizer"].pop("param_groups"),
    "optimizer's tensors of other shapes": lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.ones(1, 2, 3)),
    "optimizer's tensors as text": lambda s: s["optimizer"]["state"][0].update(exp_avg="x"),
    "random": lambda s: s.update(random=torch.ones(3)),
    "random as text": lambda s: s.update(random="x"),
    "identity": lambda s: s.update(identity={}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_entries_of_the_wrong_type_or_shape_are_one_line(stopped, change):
    old_checkpoint(stopped / CHECKPOINT, CHANGES[change])
    before = (stopped / CHECKPOINT).read_bytes()
    assert CHECKPOINT in refused("train", "--resume", "--out", stopped)
    assert (stopped / CHECKPOINT).read_bytes() == before
    assert not (stopped / RESULT).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(count="x"),
        lambda e: e.update(count=10**9),
        lambda e: e.update(weights=[torch.ones(2)]),
        lambda e: e.update(weights=None),
        lambda e: e.update(lowest="low"),
        lambda e: e.clear(),
    ],
)
def test_entries_of_whole_batches_too(tmp_path, change):
    def stop(progress):
        if progress.step >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(replace(WHOLE, options={"max_iter": 2}), tmp_path / "run", None, stop)
    old_checkpoint(tmp_path / "run" / CHECKPOINT, lambda state: change(state["evaluator"]))
    assert CHECKPOINT in refused("train", "--resume", "--out", tmp_path / "run")


HOSTILE = {
    "folder": None,
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"3",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep and sound": b'{"run": ' + b"[" * 500 + b"]" * 500 + b"}",
    "5,000 digits": b'{"run": {"seed": ' + b"9" * 5_000 + b"}}",
    "400 digits": b'{"run": {"seed": ' + b"9" * 400 + b"}}",
    "too large": b'{"run": {"lr": 1e999}}',
    "not a number": b'{"run": {"seed": NaN}}',
    "half a character": b'{"run": {"task": "\\ud800"}}',
    "not UTF-8": b"\xff\xfe",
    "null bytes": b"\0" * 100,
    "unknown": b'{"run": {"nosuch": 1}}',
    "newline": b'{"run": {"a\\nb": 1}}',
}


@pytest.mark.parametrize(
    "words", [["train", "--resume", "--out"], ["sample"], ["explain"], ["report"]], ids=lambda w: w[0]
)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_configuration_is_one_line(stopped, what, words):
    path = stopped / CONFIG
    path.unlink()
    if what == "folder":
        path.mkdir()
    else:
        path.write_bytes(HOSTILE[what])
    if words == ["report"]:
        assert command("report", stopped).exit_code == 0
    else:
        assert CONFIG in refused(*words, stopped)


@pytest.mark.parametrize("name", [CONFIG, CHECKPOINT])
def test_a_file_is_no_folder_of_a_run(stopped, name):
    for words in (["sample"], ["explain"], ["report"], ["train", "--resume", "--out"], ["train", "--out"]):
        assert name in refused(*words, stopped / name)


def test_a_pipe_is_not_waited_for(stopped):
    for name in (CONFIG, CHECKPOINT):
        saved = (stopped / name).read_bytes()
        (stopped / name).unlink()
        os.mkfifo(stopped / name)
        assert f"{name} is no regular file" in refused("train", "--resume", "--out", stopped)
        (stopped / name).unlink()
        (stopped / name).write_bytes(saved)


def test_files_of_versions_without_checksums_are_read(stopped, expected):
    old_checkpoint(stopped / CHECKPOINT, lambda state: None)
    unsealed(stopped / CONFIG)
    done = run_one(SMALL, stopped)
    unsealed(stopped / RESULT)
    same_run(finished(stopped), done)
    same_run(done, expected)


def test_a_disk_that_is_full_leaves_the_checkpoint_before(tmp_path):
    """torch would make an error of its own of what the file says."""
    save_checkpoint(tmp_path / "checkpoint.pt", {"model": torch.zeros(10)})
    before, (soft, hard) = (tmp_path / "checkpoint.pt").read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*checkpoint\.pt: File too large"):
            save_checkpoint(tmp_path / "checkpoint.pt", {"model": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
