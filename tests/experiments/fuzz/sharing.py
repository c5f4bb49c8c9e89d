"""Several real processes on one folder, started as a program: it has loaded everything, and forks for each of them.

``sharing.py contest FOLDER ROUNDS`` prints how many processes had each claim.
``sharing.py runs FOLDER SEED KILLS`` makes all of ``RUNS`` by three processes, and kills so many at work.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from inline import inline_workers

from adaqn.experiments.training import claims, folder, parallel
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.run import Run

SMALL = RunConfig(layers=1, hidden=8, limit=3_000, batch_size=4, length=10, steps=20, evaluations=30, lr=0.01)
RUNS = [replace(SMALL, optimizer=name, seed=seed) for seed in range(2) for name in ("adaqn", "adam")]
STEPS = "steps.log"
SILENT = claims.Owner("another/boot/1", 1, 1)
PROCESSES = 3


def forked(work, *arguments):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return child


# ---------------------------------------------------------------------- claims


def contest(root, rounds):
    """Who began the claim of every second round was silent for too long."""
    won = []
    for number in range(rounds):
        place = root / str(number)
        place.mkdir(parents=True)
        if number % 2:
            (place / "claim.0").write_text(json.dumps(asdict(SILENT)))
            os.utime(place / "claim.0", (0, 0))
        start = time.monotonic() + 0.02
        children = [forked(contend, place, start) for _ in range(4)]
        time.sleep(0.1)
        won.append(len(list(place.glob("won-*"))))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    print(json.dumps(won))


def contend(place, start):
    while time.monotonic() < start:
        pass
    if claims.take(place) is not None:
        (place / f"won-{os.getpid()}").touch()
    time.sleep(60)  # who ends has no claim any more


# ---------------------------------------------------------------------- runs


def work_at(root):
    """All runs that are not there yet, in this process; every step is written down."""
    parallel.started_workers = inline_workers
    jobs = [parallel.Job(config, root / folder.folder_name(config), (0,)) for config in RUNS]
    log = os.open(root / STEPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def due():
        return [job for job in jobs if not (job.folder / folder.RESULT).exists()]

    def note(run, stops):
        os.write(log, f"{run.folder.name} {run.step}\n".encode())
        return advance(run, stops)

    advance, Run._advance = Run._advance, note
    assert parallel.work_off(due, 1).complete


def share(root, seed, kills):
    """Prints how many were killed at work."""
    rng, killed = random.Random(seed), 0
    children = [forked(work_at, root) for _ in range(PROCESSES)]
    while killed < kills and len(list(root.glob(f"*/{folder.RESULT}"))) < len(RUNS):
        time.sleep(0.4 * rng.random())
        victim = children.pop(rng.randrange(PROCESSES))
        os.kill(victim, signal.SIGKILL)
        status = os.waitpid(victim, 0)[1]
        assert status in (0, signal.SIGKILL), "it failed before it was killed"
        killed += status != 0
        children.append(forked(work_at, root))
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    print(killed)


if __name__ == "__main__":
    claims.HEARTBEAT, claims.STALE = 1.0, 5.0
    parallel.LISTEN, parallel.LOOK_AGAIN = 0.01, 0.05
    what, root, *numbers = sys.argv[1:]
    Path(root).mkdir(exist_ok=True)
    {"contest": contest, "runs": share}[what](Path(root), *map(int, numbers))
