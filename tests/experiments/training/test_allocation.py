"""Memory that is freed is used again, where the C library can be told so."""

import subprocess
import sys

import pytest

from limits import LIMIT

PROGRAM = """
import resource
import torch
from adaqn.experiments.training.allocation import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 * 2**20)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
keep_freed_memory()
print(usual, min(faults() for _ in range(4)))  # the first blocks are new, and a thread's may be
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other libraries")
def test_large_blocks_are_not_cleared_anew():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    usual, kept = map(int, done.stdout.split())
    assert kept < 0.05 * usual
