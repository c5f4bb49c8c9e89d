"""Runs side by side in processes of their own, in an order, within a budget; what dies is made again."""

import math
import multiprocessing as mp
import signal
import subprocess
import time
from dataclasses import replace

import psutil
import pytest
from inline import inline_workers
from laboratory import ADAQN, command, same_run, wait_until, without_time

from adaqn.experiments.errors import UserError
from adaqn.experiments.training import parallel
from adaqn.experiments.training.claims import busy
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, RESULT, folder_name
from adaqn.experiments.training.pace import Left, Pace
from adaqn.experiments.training.parallel import Job, deadline, run_all, run_one, work_off
from adaqn.experiments.training.run import Progress
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


def test_an_interrupted_comparison_saves_every_run_and_goes_on(tmp_path, monkeypatch):
    flags = ["--steps", "100000", "--limit", "20000", "--layers", "1", "--hidden", "8", "--out", "compared", "--json"]
    words = ["compare", *flags, "--optimizers", "adam,adagrad"]
    first = subprocess.Popen(
        [*ADAQN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    wait_until(lambda: len(list(tmp_path.glob("compared/runs/*/metrics.jsonl"))) == 2, first)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=LIMIT)
    assert first.returncode == 130
    assert errors.strip().startswith("adaqn: interrupted")
    assert len(list(tmp_path.glob("compared/runs/*/checkpoint.pt"))) == 2
    monkeypatch.chdir(tmp_path)
    short = [word if word != "100000" else "40" for word in words]
    done = command(*short)
    assert done.exit_code == 0, done.output


def test_a_killed_comparison_leaves_no_worker_behind(tmp_path):
    """Its workers would go on, and hold the claims on their folders: the same command could not go on."""
    flags = ["--steps", "100000", "--limit", "20000", "--layers", "1", "--hidden", "8", "--out", "compared"]
    words = ["compare", *flags, "--optimizers", "adam,adagrad", "--workers", "2"]
    first = subprocess.Popen([*ADAQN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
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


# ---------------------------------------------------------------------- what is due


def jobs_of(root, configs, groups=None):
    groups = groups or [(0,)] * len(configs)
    return [Job(config, root / folder_name(config), group) for config, group in zip(configs, groups, strict=True)]


def not_finished(jobs):
    return lambda: [job for job in jobs if not (job.folder / RESULT).exists()]


@pytest.fixture
def impatient(monkeypatch):
    """Looks at every moment, and gives runs no time before others may have their place."""
    for name in ("LISTEN", "LOOK_AGAIN", "SLICE"):
        monkeypatch.setattr(parallel, name, 0.02)


def test_groups_are_made_in_their_order_and_what_follows_from_a_result_at_once(tmp_path, monkeypatch, impatient):
    """What is due is asked again after every run: nothing waits for a round to end."""
    monkeypatch.setattr(parallel, "started_workers", inline_workers)
    first, last, later = (replace(SMALL, optimizer="adam", steps=2, seed=seed) for seed in range(3))
    jobs = jobs_of(tmp_path, [last, first, later], [(1,), (0, 0), (0, 1)])
    made = []

    def due():
        finished = {job.folder for job in jobs if (job.folder / RESULT).exists()}
        made.extend(folder for folder in finished if folder not in made)
        known = (
            [jobs[1], jobs[0]] if jobs[1].folder not in finished else [jobs[2], jobs[0]]
        )  # it follows from the first
        return [job for job in known if job.folder not in finished]

    assert work_off(due, 1).complete
    due()
    assert made == [jobs[1].folder, jobs[2].folder, jobs[0].folder]


class Moment(float):
    """The end of a budget, that comes when the test says so: runs are at work, however fast the machine is."""

    is_over = False

    def __le__(self, now):
        return self.is_over


ENDLESS = 1_000_000
"""Steps: no machine is at their end before it is interrupted."""


def test_the_end_of_the_budget_saves_runs_and_they_go_on(tmp_path, impatient):
    (job,) = jobs = jobs_of(tmp_path, [replace(SMALL, optimizer="adam", steps=ENDLESS, evaluations=1)])
    first_words = []
    for _ in range(2):
        steps, moment = [], Moment()

        def stop(job, progress, steps=steps, moment=moment):
            steps.append(progress.step)
            moment.is_over = progress.step > 5

        assert not work_off(not_finished(jobs), 1, until=moment, listener=stop).complete
        assert (job.folder / CHECKPOINT).exists()
        assert not (job.folder / RESULT).exists()
        assert busy(job.folder, time.time()) is None
        first_words.append(steps[0])
    assert first_words[0] == 0
    assert first_words[1] > 5, "it began anew"


def test_long_runs_of_a_group_advance_side_by_side(tmp_path, impatient):
    """With one worker for two: whoever is ahead makes room, saved."""
    configs = [replace(SMALL, optimizer=name, steps=ENDLESS, evaluations=20) for name in ("adam", "adagrad")]
    jobs = jobs_of(tmp_path, configs)
    turns, first_words, moment = [], [], Moment()

    def note(job, progress):
        if not turns or turns[-1] != job.folder:
            turns.append(job.folder)
            first_words.append(progress.step)
        moment.is_over = len(turns) > 3

    assert not work_off(not_finished(jobs), 1, until=moment, listener=note).complete
    assert first_words[:2] == [0, 0]
    assert min(first_words[2:]) > 0, "a run that had made room began anew"


def test_a_worker_that_dies_takes_nothing_with_it(tmp_path, impatient):
    configs = [replace(SMALL, optimizer=name, steps=300, evaluations=20) for name in ("adam", "adagrad")]
    jobs, killed = jobs_of(tmp_path / "shared", configs), []
    others = set(mp.active_children())

    def kill(job, progress):
        if progress.step > 5 and not killed:
            killed.append(next(iter(set(mp.active_children()) - others)))
            killed[0].kill()

    outcome = work_off(not_finished(jobs), 2, listener=kill)
    assert killed
    assert outcome.complete
    assert not outcome.failures
    for job in jobs:
        same_run(run_one(job.config, job.folder), run_one(job.config, tmp_path / job.config.optimizer))


def test_a_worker_that_is_killed_while_it_waits_is_replaced(tmp_path, impatient):
    first, second = jobs_of(tmp_path, [replace(SMALL, optimizer="adam", steps=2, seed=seed) for seed in range(2)])
    others, killed = set(mp.active_children()), []

    def due():
        if not (first.folder / RESULT).exists():
            return [first]
        if not killed:
            time.sleep(1.0)  # it has said that its run is finished, and waits
            killed.extend(set(mp.active_children()) - others)
            for process in killed:
                process.kill()
                process.join()
        return [job for job in (second,) if not (job.folder / RESULT).exists()]

    assert work_off(due, 1).complete
    assert len(killed) == 1


def test_one_that_fails_stops_the_others_or_not(tmp_path, monkeypatch, impatient):
    monkeypatch.setattr(parallel, "started_workers", inline_workers)
    wrong = replace(SMALL, optimizer="adam", options={"nosuch": 1})
    jobs = jobs_of(tmp_path, [wrong, replace(SMALL, optimizer="adam", steps=2)], [(0,), (1,)])
    outcome = work_off(not_finished(jobs), 1, keep_going=True)
    assert outcome.complete
    assert list(outcome.failures) == [jobs[0].folder]
    assert "nosuch" in str(outcome.failures[jobs[0].folder])
    assert (jobs[1].folder / RESULT).exists()
    with pytest.raises(UserError, match="nosuch"):
        work_off(not_finished(jobs), 1)


def test_a_budget_is_a_number_of_hours():
    assert deadline(None) == math.inf
    assert 0.0 < deadline(1.0) - time.monotonic() <= 3600.0
    for wrong in (-1.0, math.nan):
        with pytest.raises(UserError, match="hours of at least 0"):
            deadline(wrong)


def test_what_is_left_takes_as_long_as_its_like(tmp_path, monkeypatch):
    now, pace = [0.0], Pace()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    job = Job(replace(SMALL, optimizer="adam", steps=100), tmp_path / "a", (), "cell")
    assert pace.seconds([Left("cell", "adam", 1, 100.0)]) == (0.0, False)
    for step, seconds in (0, 200.0), (10, 40.0), (30, 0.0):  # the first takes long: it comes after an evaluation
        pace.note(job, Progress(step, 100, None))
        now[0] += seconds
    assert pace.seconds([Left("cell", "adam", 2, 150.0), Left("cell", "soap", 1, 10.0)]) == (320.0, True)
    assert pace.seconds([Left("cell", "adam", 1, 1.0), Left("other", "adam", 1, 10.0)]) == (2.0, False)
    for step, seconds in (10, 70.0), (20, 5.0), (30, 0.0):  # resumed from an older checkpoint
        pace.note(job, Progress(step, 100, None))
        now[0] += seconds
    assert pace.seconds([Left("cell", "adam", 1, 2.0)]) == (1.0, True)
    short = Job(replace(SMALL, optimizer="adam", steps=4), tmp_path / "b", (), "short")
    for step, seconds in (0, 2.0), (4, 0.0):  # over before anything else was said of it
        pace.note(short, Progress(step, 4, None))
        now[0] += seconds
    assert pace.seconds([Left("short", "adam", 1, 4.0)]) == (2.0, True)
