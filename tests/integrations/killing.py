"""Examples as a user starts them: as they are, or with a folder, killed in the middle and started again."""

import os
import re
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch

from copies import CONTEXT
from limits import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"
REPORT = re.compile(r"^(.*?): loss (\S+?)(?:,.*)?$", re.M)


def losses(output):
    """What an example printed: label → loss, with every digit."""
    return dict(REPORT.findall(output))


def started(example, *arguments):
    """(The process, what it prints), as a user starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    return process, process.stdout


def forked(example, *arguments):
    """The same from a process that has torch loaded: most of a start is that."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_become, args=(example, [str(a) for a in arguments], writer), daemon=True)
    process.start()
    writer.close()
    return process, open(os.dup(reader.fileno()), encoding="utf-8")


def _become(example, arguments, writer):
    os.dup2(writer.fileno(), 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    sys.argv = [example, *arguments]
    sys.path.insert(0, str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


def run_killed(how, example, *arguments, after=3):
    """SIGKILL as soon as it has reported so often, each time with a checkpoint on disk."""
    process, lines = how(example, *arguments)
    seen = ""
    with lines:
        for line in lines:
            seen += line
            if len(losses(seen)) == after:
                process.kill()
    code = process.wait(LIMIT) if how is started else (process.join(LIMIT), process.exitcode)[1]
    assert code == -signal.SIGKILL, seen
    return losses(seen)


def run_here(example, *arguments, capsys):
    """In this process, which has the packages loaded: a start takes seconds."""
    with mock.patch.object(sys, "argv", [example, *map(str, arguments)]):
        sys.path.insert(0, str(EXAMPLES))
        try:
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        finally:
            sys.path.remove(str(EXAMPLES))
    return losses(capsys.readouterr().out)


@contextmanager
def within(folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def assert_says_how_to_start(example, capsys):
    with pytest.raises(SystemExit, match="0"):
        run_here(example, "--help", capsys=capsys)
    said = capsys.readouterr().out
    assert f"usage: {example}" in said
    assert f"examples/{example}" in said
    assert "(default: " in said


def assert_goes_on_with_the_same_numbers(example, folder, *options, capsys, how=started):
    """Started without a folder, and killed in one that is named; returns where both have saved."""
    killed, undisturbed = folder / "killed", folder / "examples-output" / Path(example).stem
    assert_says_how_to_start(example, capsys)
    with within(folder):
        expected = run_here(example, *options, capsys=capsys)
    before = run_killed(how, example, killed, *options)
    after = run_here(example, killed, *options, capsys=capsys)
    assert len(before) < len(expected)
    assert 0 < len(after) < len(expected), "it began anew"
    assert list(expected.items())[-len(after) :] == list(after.items())
    assert before | after == expected
    return killed, undisturbed
