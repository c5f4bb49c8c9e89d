"""Who works in a folder: one process alone, until it says so, is gone, or is silent for too long."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from laboratory import wait_until, without_time

from adaqn.experiments.errors import UserError
from adaqn.experiments.training import claims
from adaqn.experiments.training.claims import STALE, BusyError, ClaimLostError, Owner, busy, take, this_host
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, METRICS, claimed
from adaqn.experiments.training.parallel import run_one
from limits import LIMIT

SMALL = RunConfig(optimizer="adam", layers=1, hidden=8, limit=6_000, steps=6, batch_size=8, length=20, evaluations=20)
ELSEWHERE = Owner("another/boot/1", 1, 1)
HOLDER = """
import sys, time
from pathlib import Path
from adaqn.experiments.training.claims import take
claim = take(Path(sys.argv[1]))
print(claim is not None, flush=True)
time.sleep(float(sys.argv[2]))
"""


def written(folder, owner, age=0.0, number=0):
    """A claim as somebody else made it."""
    path = folder / f"claim.{number}"
    path.write_text(json.dumps(asdict(owner)))
    os.utime(path, (time.time() - age,) * 2)
    return path


def holder(folder, seconds=LIMIT):
    command = [sys.executable, "-c", HOLDER, str(folder), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    return process


def test_the_claim_of_a_killed_process_of_this_machine_is_over_at_once(tmp_path):
    process = holder(tmp_path)
    assert take(tmp_path) is None
    assert busy(tmp_path, time.time()) == f"process {process.pid} of {this_host().partition('/')[0]}"
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: claims.started(process.pid)[0] is False, _Ours())  # a zombie is gone too
    claim = take(tmp_path)
    assert claim is not None
    process.communicate()
    claim.end(forget=False)


class _Ours:
    def poll(self):
        return None


def test_the_claim_of_another_machine_is_over_when_it_is_silent(tmp_path):
    written(tmp_path, ELSEWHERE, age=0.5 * STALE)
    assert take(tmp_path) is None
    written(tmp_path, ELSEWHERE, age=1.5 * STALE)
    assert busy(tmp_path, time.time()) is None
    claim = take(tmp_path)
    assert claim is not None
    assert claim.path.name == "claim.1"
    claim.end(forget=True)
    assert not list(tmp_path.iterdir())


def test_a_sign_of_life_from_the_far_future_is_none(tmp_path):
    """The clock went backwards since: the claim would count until then."""
    for seconds in (1.5 * STALE, 3600.0, 1e9):
        path = written(tmp_path, ELSEWHERE, age=-seconds)
        assert busy(tmp_path, time.time()) is None
        claim = take(tmp_path)
        assert claim is not None, seconds
        claim.end(forget=True)
    path = written(tmp_path, ELSEWHERE, age=-1e6)
    path.write_text('{"host": "x')
    os.utime(path, (time.time() + 1e6,) * 2)
    assert take(tmp_path) is not None


def test_clocks_that_are_a_little_off_and_processes_that_are_there_count(tmp_path):
    written(tmp_path, ELSEWHERE, age=-0.5 * STALE)
    assert take(tmp_path) is None
    written(tmp_path, Owner(this_host(), os.getpid(), claims.started(os.getpid())[1]), age=-3600.0)
    assert take(tmp_path) is None


def test_a_folder_that_is_claimed_says_by_which_file_and_what_to_do(tmp_path):
    written(tmp_path, ELSEWHERE)
    path = written(tmp_path, ELSEWHERE, number=1)
    with pytest.raises(BusyError) as caught, claimed(tmp_path):
        pass
    assert f"process 1 of another is at work there; if you know that it is not, delete {path}" in str(caught.value)


def test_another_process_with_the_number_of_the_owner_is_not_the_owner(tmp_path):
    exists, started = claims.started(os.getpid())
    assert exists
    if started is None:
        pytest.skip("this system does not say when a process started")
    written(tmp_path, Owner(this_host(), os.getpid(), started - 1))
    assert take(tmp_path) is not None


def test_a_claim_that_was_half_written_counts_until_it_is_old(tmp_path):
    path = written(tmp_path, ELSEWHERE)
    path.write_text('{"host": "x')
    assert take(tmp_path) is None
    os.utime(path, (0, 0))
    assert take(tmp_path) is not None


@pytest.mark.parametrize(
    "said",
    ["[" * 4_000, "[]", "null", {"pid": "x"}, {"pid": 10**30}, {"pid": -1}, {"host": 5}, {"started": []}, {"more": 1}],
    ids=str,
)
def test_a_damaged_claim_counts_until_it_is_old(tmp_path, said):
    ours = asdict(Owner(this_host(), os.getpid(), 1))
    path = tmp_path / "claim.0"
    path.write_text(said if isinstance(said, str) else json.dumps({**ours, **said}))
    assert take(tmp_path) is None
    assert busy(tmp_path, time.time()) == "another process"
    os.utime(path, (0, 0))
    assert take(tmp_path) is not None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_claim(tmp_path, make):
    """A pipe would be waited for."""
    make(tmp_path / "claim.0")
    with pytest.raises(UserError, match=r"cannot work in .*: claim\.0 is no regular file"), claimed(tmp_path):
        pass


def test_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "HEARTBEAT", 0.05)
    claim = take(tmp_path)
    os.utime(claim.path, (1, 1))
    wait_until(lambda: claim.path.stat().st_mtime > 1, _Ours())
    claim.end(forget=False)
    time.sleep(0.2)
    assert claim.path.stat().st_mtime == 0, "what has ended gives no more of them"
    assert take(tmp_path) is not None


def test_clocks_of_two_machines_may_differ(tmp_path, monkeypatch):
    """Files have the time of the server: ours may be an hour ahead."""
    written(tmp_path, ELSEWHERE)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600.0)
    assert take(tmp_path) is None


def test_a_run_that_was_taken_over_writes_nothing_more(tmp_path):
    """It was suspended, say; by the time it wakes up another process is further."""
    seen = {}

    def taken_over(progress):
        if progress.step == 3:
            written(tmp_path, ELSEWHERE, number=1)
            seen.update({path.name: path.read_bytes() for path in tmp_path.iterdir()})

    with pytest.raises(ClaimLostError, match="another process has taken over"):
        run_one(SMALL, tmp_path, None, taken_over)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == seen
    os.utime(tmp_path / "claim.1", (0, 0))
    resumed, whole = run_one(SMALL, tmp_path), run_one(SMALL, tmp_path.with_name("whole"))
    assert without_time(resumed.metrics) == without_time(whole.metrics)


def test_a_new_run_that_was_taken_over_before_its_first_step_is_left_to_the_other(tmp_path):
    def taken_over(progress):
        written(tmp_path, ELSEWHERE, number=1)

    with pytest.raises(ClaimLostError):
        run_one(SMALL, tmp_path, None, taken_over)
    assert (tmp_path / CONFIG).exists()
    assert not (tmp_path / METRICS).exists()


def test_a_run_that_another_finished_since_we_looked_is_reused(tmp_path, monkeypatch):
    done = run_one(SMALL, tmp_path)
    results = iter([None])  # as it was when we looked
    from adaqn.experiments.training import opening

    real = opening.finished
    monkeypatch.setattr(opening, "finished", lambda folder: next(results, real(folder)))
    before = (tmp_path / METRICS).stat().st_mtime_ns
    assert run_one(SMALL, tmp_path).metrics == done.metrics
    assert (tmp_path / METRICS).stat().st_mtime_ns == before


def test_a_stopped_run_leaves_a_claim_that_is_over(tmp_path):
    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(SMALL, tmp_path, None, stop)
    assert busy(tmp_path, time.time()) is None
    with claimed(tmp_path) as claim:
        assert claim.path.name == "claim.1"
    assert run_one(replace(SMALL), tmp_path).result["steps"] == SMALL.steps
    assert not list(tmp_path.glob("claim.*"))
