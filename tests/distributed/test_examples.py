"""The examples, as a user would start them."""

import os
import subprocess
import sys
from pathlib import Path

from limits import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"


def torchrun(*arguments, count=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def last_loss(output):
    return float(output.rsplit("loss ", 1)[1].split(",")[0])


def test_ddp():
    output = torchrun(str(EXAMPLES / "ddp.py"))
    assert "step 200" in output
    assert last_loss(output) < 0.45


def test_fsdp2_goes_on_from_its_checkpoint_in_one_process(tmp_path):
    first = torchrun(str(EXAMPLES / "fsdp2.py"), str(tmp_path / "checkpoint"))
    second = torchrun(str(EXAMPLES / "fsdp2.py"), str(tmp_path / "checkpoint"), count=1)
    assert "step 100" in first
    assert "step 200" in second
    assert last_loss(second) < last_loss(first) < 0.7
