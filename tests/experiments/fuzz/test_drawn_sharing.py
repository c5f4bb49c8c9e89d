"""Several processes on one folder, killed at drawn moments: every run is made once, with the bits of a single one."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from laboratory import weights, without_time
from sharing import RUNS, STEPS

from adaqn.experiments.reading import read_lines
from adaqn.experiments.training.folder import METRICS, folder_name
from adaqn.experiments.training.parallel import run_one
from limits import LIMIT

PROGRAM = Path(__file__).with_name("sharing.py")


def sharing(*words):
    here = [str(PROGRAM.parent), str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(here), "ADAQN_CHECKPOINT_SECONDS": "0"}
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs of a single process."""
    root = tmp_path_factory.mktemp("alone")
    return {folder_name(config): run_one(config, root / folder_name(config)).folder for config in RUNS}


def assert_the_same(root, alone):
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == sorted(alone)
    for name, expected in alone.items():
        made = root / name
        assert without_time(read_lines(made / METRICS)) == without_time(read_lines(expected / METRICS))
        assert all(torch.equal(value, weights(made)[key]) for key, value in weights(expected).items())
        assert not [path.name for path in made.iterdir() if path.name.startswith(("claim", "."))]


def test_of_many_that_begin_at_once_one_has_the_claim(tmp_path):
    """Also of those who find that the last one has been silent for too long: two that take over cannot both win."""
    assert sharing("contest", tmp_path, 20) == [1] * 20


def test_no_step_is_made_twice(tmp_path, alone):
    sharing("runs", tmp_path, 0, 0)
    steps = Counter((tmp_path / STEPS).read_text().splitlines())
    assert steps == Counter(f"{name} {step}" for name in alone for step in range(RUNS[0].steps))
    assert_the_same(tmp_path, alone)


def test_drawn_kills_of_processes_that_share(tmp_path, alone, record_property):
    killed = sharing("runs", tmp_path, 1, 6)
    assert_the_same(tmp_path, alone)
    assert killed >= 3, "nothing is tried if all come too late"
    record_property("tried", {"kills": killed})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_drawn_kills_of_processes_that_share(tmp_path, alone, record_property, seed):
    killed = sharing("runs", tmp_path, seed, 20)
    assert_the_same(tmp_path, alone)
    record_property("tried", {"kills": killed})
