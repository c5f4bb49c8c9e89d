"""Points that are drawn anew: from seed and number, told to those who ask, measured on points that are for all."""

from dataclasses import replace

import pytest
import torch
from laboratory import refused, same_run

from adaqn.experiments.errors import UserError
from adaqn.experiments.physics.equations import EQUATIONS
from adaqn.experiments.physics.residuals import Residuals, ScaledNetwork
from adaqn.experiments.problems import pinn
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(
    task="pinn", problem="burgers", layers=2, hidden=8, points=50, steps=60, resample=7, optimizer="adaqn-lbfgs"
)
METHODS = ["adaqn-lbfgs", "torch-lbfgs", "soap", "adaqn"]


@pytest.fixture(autouse=True)
def few_points_for_all(monkeypatch):
    monkeypatch.setattr(pinn, "MEASURED_INSIDE", 200)


def seen_by(run):
    """(The sample, the step of the optimizer) of every evaluation with a gradient, from now on."""
    seen, step = [], run.optimizer.step
    calls = [0]

    def counting(*args, **options):
        calls[0] += 1
        return step(*args, **options)

    run.optimizer.step = counting
    run.model.register_forward_hook(
        lambda _, given, __: seen.append((given[0][0].tolist(), calls[0])) if torch.is_grad_enabled() else None
    )
    return seen


@pytest.mark.parametrize("optimizer", METHODS)
@pytest.mark.parametrize("resample", [2, 7])
def test_a_sample_is_that_of_its_number_for_so_many_evaluations(optimizer, resample):
    run = open_run(replace(SMALL, optimizer=optimizer, resample=resample))
    seen = seen_by(run)
    run.train()
    firsts = [run.task.sample(number)[0][0].tolist() for number in range(-(-60 // resample))]
    assert [point for point, _ in seen] == [firsts[count // resample] for count in range(60)]
    assert len({tuple(point) for point in firsts}) == len(firsts)


def test_the_first_sample_is_number_0_and_seeds_draw_other_points():
    run, other = (open_run(replace(SMALL, seed=seed)) for seed in (0, 1))
    assert torch.equal(run.batch[0], run.task.sample(0)[0])
    assert not torch.equal(run.batch[0][:5], other.batch[0][:5])
    assert all(torch.equal(a, b) for a, b in zip(run.task.splits["test"], other.task.splits["test"], strict=True))


@pytest.mark.parametrize("resample", [2, 7, 30])
def test_a_step_of_our_lbfgs_never_sees_two_samples(resample):
    run = open_run(replace(SMALL, resample=resample))
    seen = seen_by(run)
    run.train()
    samples = {}
    for point, step in seen:
        samples.setdefault(step, set()).add(tuple(point))
    assert all(len(points) == 1 for points in samples.values())
    assert run.optimizer.stats.stored > 0


@pytest.mark.parametrize("optimizer", METHODS)
@pytest.mark.parametrize("stop", [21, 24])
def test_a_resumed_run_has_the_same_bits(tmp_path, optimizer, stop):
    """Between two samples, and in the middle of one."""
    config = replace(SMALL, optimizer=optimizer, schedule="cosine")
    whole = run_one(config, tmp_path / "whole")

    def interrupt(progress):
        if progress.step >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, interrupt)
    same_run(whole, run_one(config, tmp_path / "stopped"))


def test_what_is_told_is_the_loss_on_points_for_all():
    run = open_run(SMALL)
    result = run.train()
    assert result["final"]["test_loss"] == run.task.loss_on(run.model, run.task.splits["test"])
    assert result["final"]["test_error"] == run.task.error(run.model)
    assert result["final"]["test_loss"] < run.metrics[0]["test_loss"] / 1.1
    assert result["noise"] > 0.0


def test_few_points_inside_leave_the_conditions_as_they_are():
    few, many = (open_run(replace(SMALL, points=points)).task for points in (20, 2_000))
    edges = [sum(len(condition.points) for condition in task.conditions) for task in (few, many)]
    assert edges == [400, 400]
    x, weights = few.sample(3)
    assert len(x) == 16 + 400
    assert float(weights[:16].sum() / len(weights)) == pytest.approx(1.0)


@pytest.mark.parametrize("problem", ["poisson", "helmholtz", "burgers"])
def test_points_that_change_have_their_own_right_hand_side(problem):
    equation = EQUATIONS[problem]()
    inside, conditions = equation.sample(30, 0, 5), equation.conditions(40)
    network = ScaledNetwork(2, 6, equation.low, equation.high)
    points = torch.cat([inside, *(condition.points for condition in conditions)])
    fixed, free = (Residuals(network, equation, at, conditions).double()(points)[0] for at in (inside, None))
    assert torch.equal(fixed, free)


def test_runs_without_it_are_the_runs_that_they_were():
    assert "resample" not in replace(SMALL, resample=0).complete().told()
    assert SMALL.identity() != replace(SMALL, resample=0).identity()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"resample": -1}, "resample must be a number of evaluations of at least 0, got -1"),
        ({"task": "fit", "problem": "regression"}, "resample is for pinn"),
        ({"optimizer": "scipy-lbfgs"}, "scipy-lbfgs minimises one function in one call"),
        ({"resample": 1}, "adaqn-lbfgs compares losses of one sample: --resample must be at least 2"),
    ],
)
def test_what_cannot_be_resampled_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        open_run(replace(SMALL, **changes))


def test_the_command_line_refuses_it_elsewhere():
    assert "resample is for pinn" in refused("train", "--task", "mlp", "--resample", 5)
