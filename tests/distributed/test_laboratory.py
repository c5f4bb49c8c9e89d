"""``torchrun -m adaqn train``: the run of one process, shared out; killed and started again with the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from adaqn.experiments.commands.app import run
from limits import LIMIT

STEPS = "--steps=120"
RUN = (
    "--layers=1", "--hidden=12", "--limit=12000", "--batch-size=8", "--length=20", "--evaluations=20", "--lr=0.01",
    "--monitor-size=32",
)  # fmt: skip


def start(folder, *arguments, count=2, torchrun=(), **environment):
    command = [sys.executable, "-m"]
    if count:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *torchrun, "-m"]
    command += ["adaqn", "train", "--out", str(folder), *RUN, *arguments]
    return subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end_of(process):
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, errors


def metrics(folder):
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def weights(folder):
    return torch.load(Path(folder, "checkpoint.pt"), weights_only=True)["model"]


def process_of_rank(parent, rank):
    """The child of that process with RANK in its environment."""
    for entry in Path("/proc").iterdir():
        try:
            is_child = entry.name.isdigit() and f"PPid:\t{parent}\n" in (entry / "status").read_text()
            if is_child and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue
    return None


def kill_when_saved(process, folder, rank):
    """SIGKILL to one worker, as soon as there is a checkpoint to go on from."""
    deadline = time.monotonic() + LIMIT
    while not Path(folder, "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process_of_rank(process.pid, rank), signal.SIGKILL)


def test_the_run_of_one_process_shared_out(tmp_path):
    asked = ("--steps=12", "--optimizer=adaqn-modern")
    alone = start(tmp_path / "alone", *asked, count=0)
    code, errors = end_of(start(tmp_path / "shared", *asked))
    assert code == 0, errors
    assert end_of(alone)[0] == 0
    ours, theirs = metrics(tmp_path / "alone"), metrics(tmp_path / "shared")
    assert [record["stored"] for record in ours] == [record["stored"] for record in theirs]
    assert ours[-1]["test_loss"] == pytest.approx(theirs[-1]["test_loss"], rel=1e-4)
    assert ours[-1]["train_loss"] == pytest.approx(theirs[-1]["train_loss"], rel=1e-4)


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert end_of(start(folder, STEPS))[0] == 0
    return folder


@needs_proc
def test_a_killed_process_ends_the_job_and_a_restart_has_the_same_bits(undisturbed, tmp_path):
    folder = tmp_path / "killed"
    # Patience beyond any limit: the job ends because its process died, not because the other gave up waiting.
    killed = start(folder, STEPS, ADAQN_CHECKPOINT_SECONDS="0", ADAQN_WAIT_SECONDS="1000000")
    kill_when_saved(killed, folder, rank=1)
    code, errors = end_of(killed)
    assert code != 0
    assert "Signal 9 (SIGKILL)" in errors
    assert not (folder / "result.json").exists()
    code, errors = end_of(start(folder, STEPS, "--resume"))
    assert code == 0, errors
    assert metrics(folder) == metrics(undisturbed)
    ours, theirs = weights(undisturbed), weights(folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@needs_proc
def test_torchrun_may_start_it_again_by_itself(undisturbed, tmp_path):
    folder = tmp_path / "elastic"
    elastic = start(folder, STEPS, torchrun=["--max-restarts=1"], ADAQN_CHECKPOINT_SECONDS="0")
    kill_when_saved(elastic, folder, rank=0)
    code, errors = end_of(elastic)
    assert code == 0, errors
    assert metrics(folder) == metrics(undisturbed)


def test_an_interrupt_ends_all_processes_after_the_same_step(tmp_path):
    job = start(tmp_path / "run", "--steps=5000")
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    job.send_signal(signal.SIGINT)
    code, errors = end_of(job)
    assert code != 0
    assert errors.count("adaqn: interrupted; what was done so far is saved") == 2
    assert 0 < torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] < 5000


def test_what_cannot_be_shared_out_is_one_line(tmp_path):
    code, errors = end_of(start(tmp_path, "--steps=2", "--optimizer=kfac"))
    assert code != 0
    assert "adaqn: kfac runs in one process only" in errors


def test_other_commands_are_not_for_several_processes(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(sys, "argv", ["adaqn", "tune"])
    with pytest.raises(SystemExit):
        run()
    assert "under torchrun there is 'adaqn train' alone" in capsys.readouterr().err
