"""Examples as a user starts them: to their end, or killed in the middle and started again."""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from limits import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"
REPORT = re.compile(r"^(.*?): loss (\S+?)(?:,.*)?$", re.M)


def losses(output):
    """What an example printed: label → loss, with every digit."""
    return dict(REPORT.findall(output))


def start(example, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_killed(example, *arguments, after=3):
    """SIGKILL as soon as it has reported so often, each time with a checkpoint on disk."""
    process = start(example, *arguments)
    seen = ""
    try:
        for line in process.stdout:
            seen += line
            if len(losses(seen)) >= after:
                break
    finally:
        process.kill()
        rest, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL, errors[-3000:]
    return losses(seen + rest)


def run_here(example, *arguments, capsys):
    """In this process, which has the packages loaded: a start takes seconds."""
    with mock.patch.object(sys, "argv", [example, *map(str, arguments)]):
        sys.path.insert(0, str(EXAMPLES))
        try:
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        finally:
            sys.path.remove(str(EXAMPLES))
    return losses(capsys.readouterr().out)


def assert_goes_on_with_the_same_numbers(example, killed_at, folder, *arguments, capsys):
    """``killed_at`` and ``folder``: where the run that is killed saves, and where the undisturbed one does."""
    expected = run_here(example, folder, *arguments, capsys=capsys)
    before = run_killed(example, killed_at, *arguments)
    after = run_here(example, killed_at, *arguments, capsys=capsys)
    assert len(before) < len(expected)
    assert 0 < len(after) < len(expected), "it began anew"
    assert list(expected.items())[-len(after) :] == list(after.items())
    assert before | after == expected
