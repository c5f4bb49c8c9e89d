"""The examples, as a user would start them."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from limits import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(arguments, count):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *arguments]


def torchrun(*arguments, count=2):
    found = subprocess.run(
        command(arguments, count), env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def last_loss(output):
    return float(output.rsplit("loss ", 1)[1].split(",")[0])


def test_ddp():
    output = torchrun(str(EXAMPLES / "ddp.py"))
    assert "step 200" in output
    assert last_loss(output) < 0.45


@pytest.mark.parametrize("example", ["ddp.py", "fsdp2.py"])
def test_without_torchrun_and_without_arguments_it_is_one_process(example, tmp_path):
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "RANK"}
    found = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert "step 200" in found.stdout
    assert last_loss(found.stdout) < 0.45


@pytest.mark.parametrize("example", ["ddp.py", "fsdp2.py"])
def test_it_says_how_it_is_started(example, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [example, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert f"usage: {example}" in capsys.readouterr().out


def killed_behind(words, *arguments, count):
    """Started, and ended as soon as it has said that; torchrun kills its processes, which save nothing any more."""
    with subprocess.Popen(command(arguments, count), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        output = ""
        for line in process.stdout:
            output += line
            if words in line:
                break
        process.terminate()
    assert words in output, output
    return output


@pytest.mark.parametrize("counts", [(1,), pytest.param((4, 1), marks=pytest.mark.slow)], ids=str)
def test_fsdp2_is_killed_and_goes_on_with_other_numbers_of_processes(counts, tmp_path):
    """2 → 1, or 2 → 4 → 1; to the bit with the same number, and from 2 to 4, are in test_kronecker_checkpoints.py."""
    example = str(EXAMPLES / "fsdp2.py"), str(tmp_path)
    killed = killed_behind("step 100:", *example, "--steps=100000", count=2)
    losses = [last_loss(killed)]
    for count in counts:
        before = max(int(path.parent.name) for path in tmp_path.glob("*/SHA256SUMS"))
        assert before >= 100
        output = torchrun(*example, f"--steps={before + 50}", count=count)
        assert f"processes: {count}, starting at step {before}\n" in output
        assert f"step {before + 50}:" in output
        losses.append(last_loss(output))
    assert losses[-1] < losses[0] < 0.8
    newest = max((path.parent for path in tmp_path.glob("*/SHA256SUMS")), key=lambda path: int(path.name))
    fsdp2 = runpy.run_path(example[0])
    fsdp2["check"](newest)
    shard = next(newest.glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(SystemExit, match="is damaged: delete it, and the run resumes from the previous checkpoint"):
        fsdp2["check"](newest)
    (newest / "SHA256SUMS").write_bytes(b"\xff\x00")
    with pytest.raises(SystemExit, match="is damaged"):
        fsdp2["check"](newest)
