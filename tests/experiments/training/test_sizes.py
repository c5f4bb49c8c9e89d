"""Sizes that no machine has are told before anything is made, and a start that fails leaves nothing behind."""

import pytest
import torch
from laboratory import command, refused
from torch import nn

import adaqn.optim.memory
from adaqn import AdaQN, StorageOptions
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.training import memory
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import check_workers, run_one
from adaqn.optim.memory import memory_of

HUGE = 1_000_000_000
SMALL = ["--limit", "6000", "--layers", "1", "--hidden", "8", "--batch-size", "8", "--length", "20", "--steps", "2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--hidden", HUGE], "needs at least"),
        (["train", "--layers", 100_000_000], "needs at least"),
        (["train", "--layers", 100_000_000, "--hidden", 1, "--task", "mlp"], "needs at least"),
        (["train", "--hidden", HUGE, "--task", "pinn"], "needs at least"),
        (["train", "--hidden", HUGE, "--task", "fit"], "needs at least"),
        (["train", "--hidden", 10**15, "--task", "fit", "--problem", "factorisation"], "needs at least"),
        (["train", "--points", 10**12, "--task", "pinn"], "needs at least"),
        (["train", "--length", 10**12, "--task", "addition"], "needs at least"),
        (["train", "--limit", 10**12, "--task", "addition"], "needs at least"),
        (["train", "--length", 10**12], "needs at least"),
        (["train", "--length", 10**12, "--batch-size", 1, "--hidden", 1, "--layers", 1], "needs at least"),
        (["train", "--batch-size", 10**9, "--length", 1, "--hidden", 1, "--layers", 1], "fewer than one batch"),
        (["train", *SMALL, "--option", "fisher_size=10000000000"], "needs at least"),
        (["train", *SMALL, "--option", "memory_size=10000000000"], "needs at least"),
        (["train", "--hidden", "9" * 300], f"hidden must be at most {2**53}"),
        (["train", "--hidden", "9" * 400], f"hidden must be at most {2**53}"),
        (["train", "--steps", 2**53 + 1], "steps must be at most"),
        (["train", "--epochs", "1e300"], "epochs must be a positive number of at most 1e+09"),
        (["compare", "--seeds", 99_999_999_999], "seeds must be from 1 to 1000"),
        (["figure", "addition", "--seeds", 99_999_999_999], "seeds must be from 1 to 1000"),
        (["compare", "--workers", 99_999_999_999], "at most 256"),
        (["tune", "--budget", 4 * 10**10], "at most 10000 runs"),
    ],
)
def test_what_no_machine_has_is_told_and_leaves_nothing_behind(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)
    assert not list(tmp_path.rglob("*"))


def test_the_estimate_is_no_more_than_what_a_run_takes():
    """Whatever fits must not be refused: the estimate counts the least of everything."""
    for config in (
        RunConfig(),
        RunConfig(model="lstm"),
        RunConfig(task="addition"),
        RunConfig(task="mlp"),
        *(
            RunConfig(task="fit", problem=problem)
            for problem in ("autoencoder", "digits", "regression", "factorisation")
        ),
        RunConfig(task="pinn"),
    ):
        complete = config.complete()
        weights = sum(p.numel() for p in make_task(complete).model().parameters())
        assert memory._weights(complete, complete.layers, complete.hidden) <= weights
        assert memory.needed(complete) < 300_000_000


def test_a_history_that_cannot_fit_is_refused_before_it_is_made(monkeypatch):
    layer = nn.Linear(100, 100)
    monkeypatch.setattr(adaqn.optim.memory, "memory_of", lambda device: 1_000_000)
    opt = AdaQN(layer.parameters(), preset="paper", reject="none")
    layer(torch.ones(100)).sum().backward()
    before = [p.detach().clone() for p in layer.parameters()]
    with pytest.raises(ValueError, match=r"history of 10,100 parameters needs at least .* cpu has 1 MB: keep fewer"):
        opt.step()
    assert all(torch.equal(p, q) for p, q in zip(layer.parameters(), before, strict=True))
    monkeypatch.undo()
    opt.step()
    elsewhere = AdaQN(layer.parameters(), preset="paper", reject="none", storage=StorageOptions(fisher_device="cpu"))
    elsewhere.step()


def test_what_a_container_was_given_counts(tmp_path, monkeypatch):
    cpu = torch.device("cpu")
    (tmp_path / "memory.max").write_text("123456\n")
    monkeypatch.setattr(adaqn.optim.memory, "CGROUPS", (str(tmp_path / "memory.max"), "/nosuch"))
    assert memory_of(cpu) == 123456
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_of(cpu) > 123456
    assert memory_of(torch.device("meta")) is None


FAILING = [
    ["--optimizer", "adam", "--option", "capturable=true"],  # in its first step
    ["--optimizer", "adam", "--option", "nosuch=1"],
    ["--optimizer", "sfo", "--carry-state"],
    ["--hidden", str(HUGE)],
    ["--data", "nosuch"],
]


@pytest.mark.parametrize("wrong", FAILING)
def test_a_failed_start_does_not_block_the_corrected_command(tmp_path, wrong):
    folder = tmp_path / "deep" / "run"
    refused("train", *SMALL, *wrong, "--out", folder)
    assert not list(tmp_path.iterdir())
    assert command("train", *SMALL, "--optimizer", "adam", "--out", folder).exit_code == 0


def test_a_failed_start_leaves_what_others_have_there(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused("train", *SMALL, *FAILING[0], "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_start_leaves_a_run_alone_that_is_there(tmp_path):
    assert command("train", *SMALL, "--optimizer", "adam", "--out", tmp_path / "run").exit_code == 0
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    refused("train", *SMALL, *FAILING[0], "--out", tmp_path / "run")
    refused("train", "--resume", "--lr", "7", "--out", tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    assert not [name for name in before if name.startswith("claim")], "a finished run needs none"


def test_a_run_that_fails_later_is_kept(tmp_path):
    def fail(progress):
        if progress.step == 1:
            raise RuntimeError("later")

    config = RunConfig(optimizer="adam", limit=6_000, layers=1, hidden=8, batch_size=8, length=20, steps=2)
    with pytest.raises(RuntimeError, match="later"):
        run_one(config, tmp_path / "run", None, fail)
    assert run_one(config, tmp_path / "run").result["steps"] == 2


def test_numbers_of_workers():
    assert check_workers(256) == 256
    for count in (0, -1, 257):
        with pytest.raises(UserError, match="workers must be at least 1 and at most 256"):
            check_workers(count)
