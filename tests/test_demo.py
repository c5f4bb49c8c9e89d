"""`make demo` as a person runs it: a picture, a report, and a clean end on Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_leaves_a_picture_and_a_report(tmp_path):
    done = subprocess.run(
        [sys.executable, DEMO, "--quick", "--out", tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "curves.png" in report
    for name in ("AdaQN", "Adagrad", "Adam"):
        assert name in report
        assert name in done.stdout


def test_interrupted_it_ends_with_one_line(tmp_path):
    demo = subprocess.Popen(
        [sys.executable, DEMO, "--steps", "100000", "--out", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    time.sleep(12)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("flags", [["--steps", "0"], ["--threads", "-1"], ["--steps", "many"]])
def test_bad_flags_are_one_line(flags):
    done = subprocess.run([sys.executable, DEMO, *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert flags[0] in done.stderr
