"""Every command with drawn arguments: exit code 0 or a line, never a traceback."""

import random
import shutil
from dataclasses import replace

import pytest
from drawing import assert_told, drawn_command, furnish, outcome

from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(layers=1, hidden=4, limit=2_000, steps=2, batch_size=4, length=10, lr=0.01)


def furnished(root):
    furnish(root)
    run_one(SMALL, root / "run")
    run_one(replace(SMALL, optimizer="adam", task="mlp", length=None, limit=64), root / "mlp")


def tried(root, seed, count):
    """How many ended well, and how many with a word."""
    rng, codes = random.Random(seed), {0: 0}
    for _ in range(count):
        code, _, _ = outcome(drawn_command(rng, root))
        codes[code] = codes.get(code, 0) + 1
        for made in root.glob("new*"):
            if made.is_dir():
                assert [path.name for path in made.iterdir()] != ["claim.0"], "a claim alone was left behind"
                shutil.rmtree(made)
    return codes


def test_drawn_commands(here, record_property):
    furnished(here)
    codes = tried(here, seed=0, count=60)
    record_property("tried", {"commands": 60})
    assert min(codes.get(0, 0), codes.get(2, 0)) > 5, f"nothing is tried if all end alike: {codes}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_drawn_commands(here, record_property, seed):
    furnished(here)
    tried(here, seed, count=300)
    record_property("tried", {"commands": 300})


@pytest.mark.slow
def test_drawn_commands_as_processes(here, zygote, record_property):
    """The same in processes of their own, where nothing is left of the one before."""
    furnished(here)
    rng = random.Random(99)
    for number in range(60):
        words = drawn_command(rng, here)
        if words[0] in ("compare", "tune", "figure", "study", "doctor", "data"):
            continue  # those that start workers, fetch, or measure the machine
        words = [word.replace("\0", "") for word in map(str, words)]
        errors = here / f"errors-{number}"
        code = zygote.run(words, errors, kill_after=120)
        assert code >= 0, f"it was killed, or hung: {words}"
        if code:
            assert_told(errors.read_text(encoding="utf-8", errors="replace"), words)
        record_property("tried", {"processes": 1})
