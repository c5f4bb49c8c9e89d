"""Runs side by side in processes of their own."""

import signal
import subprocess
from dataclasses import replace

import psutil
from laboratory import ADAQN, wait_until, without_time

from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import run_all, run_one
from limits import LIMIT

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=12, batch_size=8, length=20, evaluations=20, lr=0.01)


def test_runs_side_by_side_are_the_runs_one_by_one_and_are_reused(tmp_path):
    configs = [replace(SMALL, optimizer=name) for name in ("adaqn", "adam", "adagrad")]
    together = run_all(configs, tmp_path / "together", workers=2)
    for config, run in zip(configs, together, strict=True):
        alone = run_one(config, tmp_path / config.optimizer)
        assert without_time(alone.metrics) == without_time(run.metrics)
    again = run_all(configs, tmp_path / "together", workers=2)
    assert [run.metrics for run in again] == [run.metrics for run in together]


def test_an_interrupted_comparison_saves_every_run_and_goes_on(tmp_path):
    flags = ["--steps", "3000", "--limit", "20000", "--layers", "1", "--hidden", "8", "--out", "compared", "--json"]
    command = [*ADAQN, "compare", *flags, "--optimizers", "adam,adagrad"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("compared/runs/*/metrics.jsonl"))) == 2, first)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=LIMIT)
    assert first.returncode == 130
    assert errors.strip().startswith("adaqn: interrupted")
    assert len(list(tmp_path.glob("compared/runs/*/checkpoint.pt"))) == 2
    short = [word if word != "3000" else "40" for word in command]
    done = subprocess.run(short, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_killed_comparison_leaves_no_worker_behind(tmp_path):
    """Its workers would go on, and hold the claims on their folders: the same command could not go on."""
    flags = ["--steps", "100000", "--limit", "20000", "--layers", "1", "--hidden", "8", "--out", "compared"]
    command = [*ADAQN, "compare", *flags, "--optimizers", "adam,adagrad", "--workers", "2"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("compared/runs/*/metrics.jsonl"))) == 2, first)
    family = psutil.Process(first.pid).children(recursive=True)
    assert len(family) >= 3  # a manager and two workers
    first.kill()
    first.wait()
    _, alive = psutil.wait_procs(family, timeout=LIMIT)
    assert not alive


def test_warnings_of_a_worker_go_into_its_folder(tmp_path):
    odd = replace(SMALL, optimizer="adaqn", options={"curvature_eps": 1e9, "cycle_length": 1}, steps=60)
    (done,) = run_all([odd], tmp_path, 1)
    assert "stored no curvature pair" in (done.folder / "warnings.txt").read_text(encoding="utf-8")
