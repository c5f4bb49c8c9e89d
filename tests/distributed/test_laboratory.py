"""``torchrun -m adaqn train``: the run of one process, shared out; killed and started again with the same bits."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app, run
from copies import CONTEXT
from limits import LIMIT

STEPS = "--steps=100"
RUN = (
    "--layers=1", "--hidden=12", "--limit=12000", "--batch-size=8", "--length=20", "--evaluations=20", "--lr=0.01",
    "--monitor-size=32",
)  # fmt: skip


def start(folder, *arguments, torchrun=(), **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *torchrun]
    command += ["-m", "adaqn", "train", "--out", str(folder), *RUN, *arguments]
    return subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def in_copies(folder, *arguments):
    """(Exit codes, what was said) of two processes with the variables that torchrun sets, without their imports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["train", "--out", str(folder), *RUN, *arguments]
    said = [folder.with_name(f"{folder.name}-said-{rank}") for rank in range(2)]
    processes = [
        CONTEXT.Process(target=_become, args=(rank, port, words, said[rank]), daemon=True) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
    return [process.exitcode for process in processes], "".join(path.read_text() for path in said)


def _become(rank, port, words, said):
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "copies"}
    who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in {**where, **who}.items()})
    sys.argv = ["adaqn", *words]
    run()


def end_of(process):
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, errors


def metrics(folder, *others):
    """Without time. A run that goes on may count a gradient twice, so ``passes`` depend on when it was killed."""
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    left_out = ("seconds", *others)
    return [{key: value for key, value in json.loads(line).items() if key not in left_out} for line in lines]


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


def wait_until_saved(process, folder):
    """For a new checkpoint to go on from."""

    def saved():
        path = Path(folder, "checkpoint.pt")
        return path.stat().st_mtime_ns if path.exists() else None

    before, deadline = saved(), time.monotonic() + LIMIT
    while saved() == before:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill_when_saved(process, folder, rank):
    """SIGKILL to one worker at work."""
    wait_until_saved(process, folder)
    os.kill(process_of_rank(process.pid, rank), signal.SIGKILL)
    assert not Path(folder, "result.json").exists(), "it came too late"


def test_the_run_of_one_process_shared_out(tmp_path):
    asked = ("--steps=12", "--optimizer=adaqn-modern")
    codes, errors = in_copies(tmp_path / "shared", *asked)
    assert codes == [0, 0], errors
    alone = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "alone"), *RUN, *asked])
    assert alone.exit_code == 0, alone.output
    ours, theirs = metrics(tmp_path / "alone"), metrics(tmp_path / "shared")
    assert [record["stored"] for record in ours] == [record["stored"] for record in theirs]
    assert ours[-1]["test_loss"] == pytest.approx(theirs[-1]["test_loss"], rel=1e-4)
    assert ours[-1]["train_loss"] == pytest.approx(theirs[-1]["train_loss"], rel=1e-4)


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


@needs_proc
def test_a_killed_process_is_started_again_by_torchrun_or_ends_the_job_which_goes_on_with_the_same_bits(tmp_path):
    """One run of three beginnings: the second is torchrun's own, and the third by hand."""
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
    assert end_of(start(undisturbed, STEPS))[0] == 0
    # Patience beyond any limit: the job ends because its process died, not because the other gave up waiting.
    often = {"ADAQN_CHECKPOINT_SECONDS": "0", "ADAQN_WAIT_SECONDS": "1000000"}
    killed = start(folder, STEPS, torchrun=["--max-restarts=1"], **often)
    kill_when_saved(killed, folder, rank=0)
    kill_when_saved(killed, folder, rank=1)
    code, errors = end_of(killed)
    assert code != 0
    assert "Signal 9 (SIGKILL)" in errors
    assert not (folder / "result.json").exists()
    code, errors = end_of(start(folder, STEPS, "--resume"))
    assert code == 0, errors
    assert metrics(folder, "passes") == metrics(undisturbed, "passes")
    ours, theirs = weights(undisturbed), weights(folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow  # the test above has the same beginnings, and ends by hand
@needs_proc
def test_what_torchrun_has_started_again_comes_to_its_end(tmp_path):
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "elastic"
    assert end_of(start(undisturbed, STEPS))[0] == 0
    elastic = start(folder, STEPS, torchrun=["--max-restarts=1"], ADAQN_CHECKPOINT_SECONDS="0")
    kill_when_saved(elastic, folder, rank=0)
    code, errors = end_of(elastic)
    assert code == 0, errors
    assert metrics(folder, "passes") == metrics(undisturbed, "passes")


def test_an_interrupt_ends_all_processes_after_the_same_step(tmp_path):
    job = start(tmp_path / "run", "--steps=1000000", ADAQN_CHECKPOINT_SECONDS="0")
    wait_until_saved(job, tmp_path / "run")
    job.send_signal(signal.SIGINT)
    code, errors = end_of(job)
    assert code != 0
    assert errors.count("adaqn: interrupted; what was done so far is saved") == 2
    assert 0 < torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] < 1_000_000


def test_what_cannot_be_shared_out_is_one_line(tmp_path):
    codes, errors = in_copies(tmp_path / "run", "--steps=2", "--optimizer=kfac")
    assert 0 not in codes
    assert "adaqn: kfac runs in one process only" in errors


def test_other_commands_are_not_for_several_processes(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(sys, "argv", ["adaqn", "tune"])
    with pytest.raises(SystemExit):
        run()
    assert "under torchrun there is 'adaqn train' alone" in capsys.readouterr().err
