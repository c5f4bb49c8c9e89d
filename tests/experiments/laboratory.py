"""What the tests of the laboratory share: commands, interrupts where a test wants them, and waiting with a limit."""

import json
import sys
import time

import torch
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.errors import UserError, told
from adaqn.experiments.training.folder import CHECKPOINT
from limits import LIMIT

ADAQN = [sys.executable, "-m", "adaqn"]


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words):
    """The one line that a person sees."""
    done = command(*words)
    assert done.exit_code != 0
    assert isinstance(done.exception, UserError | SystemExit), repr(done.exception)
    return told(done.exception) if isinstance(done.exception, UserError) else done.output


def at_step(step):
    """A listener that does as Ctrl-C after that step."""

    def interrupt(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return interrupt


def wait_until(happened, process):
    """Wait for something that a process at work should bring about."""
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def without_time(records):
    """And without what else a resumed run costs: its optimizer evaluates the monitored loss of the anchor again."""
    return [{key: value for key, value in record.items() if key not in ("seconds", "passes")} for record in records]


def weights(folder):
    return torch.load(folder / CHECKPOINT, weights_only=True)["model"]


def same_run(one, other):
    """Everything but the time."""
    assert without_time(one.metrics) == without_time(other.metrics)
    a, b = weights(one.folder), weights(other.folder)
    assert a.keys() == b.keys()
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def unsealed(path, change=lambda values: None):
    """A file without its checksums, as versions before there were some wrote it; perhaps with other values."""
    values = json.loads(path.read_text())
    for name in ("sealed", "sha256", "metrics_sha256"):
        values.pop(name, None)
    change(values)
    path.write_text(json.dumps(values))
