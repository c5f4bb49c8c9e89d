"""The examples, as a user would start them."""

import os
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
    def alone(*options):
        command = [sys.executable, str(EXAMPLES / example), *options]
        environment = {name: value for name, value in ENVIRONMENT.items() if name != "RANK"}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
        )

    assert "usage: " in alone("--help").stdout
    found = alone()
    assert found.returncode == 0, found.stderr[-3000:]
    assert "step 200" in found.stdout
    assert last_loss(found.stdout) < 0.45


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


def test_fsdp2_is_killed_and_goes_on_with_other_numbers_of_processes(tmp_path):
    """2 → 2 → 4 → 1."""
    example = str(EXAMPLES / "fsdp2.py"), str(tmp_path)
    killed = killed_behind("step 100:", *example, "--steps=100000", count=2)
    losses = [last_loss(killed)]
    for count, before, after in ((2, 100, 150), (4, 150, 200), (1, 200, 250)):
        output = torchrun(*example, f"--steps={after}", count=count)
        begun = int(output.split("begin with step ")[1].split()[0])
        assert begun == before or (count == 2 and begun % 50 == 0 and begun >= before)
        assert f"step {after}:" in output or begun >= after
        losses += [last_loss(output)] if "loss " in output else []
    assert losses[-1] < losses[0] < 0.8
