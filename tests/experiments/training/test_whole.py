"""Runs on the whole batch: every evaluation counted, the budget kept exactly, the same bits after a pause."""

import json
from dataclasses import replace

import pytest
import torch
from laboratory import command, refused, same_run, without_time

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.whole_settings import PROBLEMS

SMALL = RunConfig(task="pinn", problem="burgers", layers=2, hidden=8, points=100, steps=90, optimizer="torch-lbfgs")


def counted(run):
    """How often the batch really goes through the model with gradients, from now on."""
    calls = []
    run.model.register_forward_hook(lambda *_: calls.append(1) if torch.is_grad_enabled() else None)
    return calls


@pytest.mark.parametrize("task, problem", [(task, p) for task, names in PROBLEMS.items() for p in names])
def test_every_problem_is_learnt(task, problem):
    size = {"points": 100, "layers": 2, "hidden": 8} if task == "pinn" or problem == "regression" else {}
    size |= {"limit": 100} if problem in ("autoencoder", "digits") else {}
    run = open_run(RunConfig(task=task, problem=problem, steps=60, optimizer="torch-lbfgs", **size))
    result = run.train()
    losses = [record["test_loss"] for record in run.metrics]
    assert losses[-1] < losses[0] / 1.1
    assert losses == sorted(losses, reverse=True)
    assert result["final"]["test_error"] > 0


@pytest.mark.parametrize("optimizer", ["torch-lbfgs", "adam", "soap", "olbfgs", "adaqn"])
@pytest.mark.parametrize("steps", [1, 30, 77])
def test_the_budget_is_kept_exactly(optimizer, steps):
    run = open_run(replace(SMALL, optimizer=optimizer, steps=steps))
    calls = counted(run)
    result = run.train()
    assert len(calls) == steps == result["steps"] == run.metrics[-1]["step"]


def test_the_lowest_loss_is_that_of_the_model_at_the_end():
    run = open_run(replace(SMALL, optimizer="adam", lr=0.05))
    result = run.train()
    assert float(run.forward()[0].detach()) == result["final"]["test_loss"]
    assert run.task.error(run.model) == result["final"]["test_error"]


def test_slices_make_the_steps_of_one_long_minimisation():
    """As torch's L-BFGS makes them in a single call."""
    run = open_run(replace(SMALL, dtype="float64", steps=70))
    run.train()
    other = open_run(replace(SMALL, dtype="float64"))
    optimizer = torch.optim.LBFGS(
        other.model.parameters(), max_iter=1000, max_eval=70, tolerance_grad=0, tolerance_change=0, history_size=50,
        line_search_fn="strong_wolfe",
    )  # fmt: skip
    losses = []

    def closure():
        optimizer.zero_grad()
        loss, _ = other.forward()
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    optimizer.step(closure)
    assert run.metrics[-1]["test_loss"] == pytest.approx(min(losses[:70]), rel=1e-6)


@pytest.mark.parametrize("optimizer", ["torch-lbfgs", "adam", "soap", "adaqn-kronecker"])
def test_a_resumed_run_has_the_same_bits(tmp_path, optimizer):
    config = replace(SMALL, optimizer=optimizer, schedule="cosine", dtype="float64")
    whole = run_one(config, tmp_path / "whole")

    def interrupt(progress):
        if progress.step >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, interrupt)
    assert torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)["step"] >= 40
    same_run(whole, run_one(config, tmp_path / "stopped"))


@pytest.mark.parametrize("optimizer", ["hf", "kfac"])
def test_hessian_free_and_kfac_fit_an_autoencoder_and_resume_with_the_same_bits(tmp_path, optimizer):
    config = RunConfig(task="fit", problem="autoencoder", limit=60, hidden=12, steps=60, optimizer=optimizer)
    whole = run_one(config, tmp_path / "whole")
    assert whole.metrics[-1]["test_loss"] < whole.metrics[0]["test_loss"]
    assert whole.metrics[-1]["step"] == 60

    def interrupt(progress):
        if progress.step >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, interrupt)
    same_run(whole, run_one(config, tmp_path / "stopped"))


def test_an_optimizer_that_asks_for_nothing_more_ends_the_run():
    run = open_run(replace(SMALL, steps=80))
    with torch.no_grad():
        for p in run.model.parameters():
            p.zero_()  # all derivatives but those of the output bias vanish, and that one soon does
    result = run.train()
    assert result["stopped_at"] < 80
    assert [record["step"] for record in run.metrics] == list(range(81))


def test_precision_is_that_of_weights_and_data_and_begins_with_the_same_numbers():
    single, double = (open_run(replace(SMALL, dtype=dtype)) for dtype in ("float32", "float64"))
    assert {p.dtype for p in double.model.parameters()} == {double.batch[0].dtype} == {torch.float64}
    for p, q in zip(single.model.parameters(), double.model.parameters(), strict=True):
        assert torch.equal(p, q.float())


def test_a_cosine_ends_with_small_steps():
    run = open_run(replace(SMALL, optimizer="adam", schedule="cosine", warm_up=5, lr=0.01, steps=50))
    sizes = []
    for _ in range(50):
        run.advance()
        sizes.append(run.optimizer.param_groups[0]["lr"])
    assert sizes[0] == pytest.approx(0.002)
    assert sizes[4] == sizes[5] == 0.01
    assert sizes[-1] < 1e-4
    assert sizes[5:] == sorted(sizes[5:], reverse=True)


def test_the_full_step_size_of_a_schedule_is_known_as_with_torchs(tmp_path):
    """Also in a run that goes on, and nobody writes it where there is no schedule."""
    config = replace(SMALL, optimizer="adaqn", schedule="cosine", warm_up=5, lr=0.01, steps=20)

    def interrupt(progress):
        if progress.step >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path, None, interrupt)
    run = open_run(config, tmp_path)
    run.resume()
    run.train()
    (group,) = run.optimizer.param_groups
    assert group["lr"] < 0.001
    assert group["initial_lr"] == 0.01
    assert "0.01 before its schedule" in run.optimizer.explain().summary[0]
    constant = open_run(replace(config, schedule="constant", warm_up=0))
    constant.advance()
    assert "initial_lr" not in constant.optimizer.param_groups[0]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"problem": "navier"}, "no problem called 'navier' for pinn"),
        ({"points": 3}, "points must be at least 20"),
        ({"batch_size": 8}, "batch-size is not for pinn"),
        ({"epochs": 2.0}, "epochs is not for pinn"),
        ({"data": "mnist"}, "may be embedded"),
        ({"model": "relu"}, "has tanh"),
        ({"dtype": "float16"}, "dtype must be one of"),
        ({"optimizer": "sfo"}, "sfo is for batches that change"),
        ({"optimizer": "kfac"}, "kfac needs layers"),
        ({"task": "mlp", "problem": None, "points": None}, "torch-lbfgs needs the whole batch"),
        ({"task": "mlp", "points": None}, "problem is for pinn and fit"),
    ],
)
def test_mistakes_are_told(changes, message):
    with pytest.raises(UserError, match=message):
        open_run(replace(SMALL, **changes))


def test_the_command_trains_and_resumes(tmp_path):
    size = ["--task", "pinn", "--problem", "wave", "--points", 50, "--layers", 1, "--hidden", 4, "--steps", 20]
    done = command("train", *size, "--optimizer", "torch-lbfgs", "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert result["steps"] == 20
    assert result["final"]["test_error"] > 0
    again = command("train", "--resume", "--out", tmp_path / "run")
    assert "after 20 evaluations" in " ".join(again.output.split())
    assert "has problem = 'wave'" in refused("train", "--resume", "--problem", "poisson", "--out", tmp_path / "run")


def test_seconds_go_on_and_measurements_are_apart():
    run = open_run(SMALL)
    run.train()
    seconds = [record["seconds"] for record in run.metrics]
    assert seconds == sorted(seconds)
    assert without_time(run.metrics) == without_time(_metrics_of(SMALL))


def _metrics_of(config):
    run = open_run(config)
    run.train()
    return run.metrics


def test_the_table_says_which_need_the_whole_batch():
    assert "torch-lbfgs" in [name for name, entry in TABLE.items() if entry.whole]
