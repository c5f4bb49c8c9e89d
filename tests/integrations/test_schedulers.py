"""Every scheduler of torch.optim drives the step size and the momentum, and resumes with the same numbers."""

import inspect
import io

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from oracles import NoisyValley, Vector, quiet, run

SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.0, 0.1, step_size_up=8),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=30),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=5),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.9)]),
}


def advance(scheduler):
    """After each step; a plateau is reduced by the loss, which does not improve here."""
    scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


def test_every_scheduler_of_torch_is_in_the_table():
    """One that a new torch brings fails here until somebody has looked at it."""
    base = lr_scheduler.LRScheduler
    modules = vars(lr_scheduler) | vars(swa_utils)
    names = {name for name, c in modules.items() if inspect.isclass(c) and issubclass(c, base)}
    assert names | set(lr_scheduler.__all__) == {*SCHEDULERS, "LRScheduler", "_LRScheduler"}


@pytest.mark.parametrize("name", list(SCHEDULERS))
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_drive_the_step_size_and_the_momentum(name, tensor_lr):
    problem = NoisyValley()
    scheduled, by_hand = Vector(problem.w0), Vector(problem.w0)
    lr = torch.tensor(0.05, dtype=torch.float64) if tensor_lr else 0.05
    opt = quiet(scheduled.parameters(), lr=lr, cycle_length=3)
    scheduler, used, group = SCHEDULERS[name](opt), [], opt.param_groups[0]
    for k in range(15):
        used.append({"lr": float(group["lr"]), "momentum": float(group["momentum"])})
        run(opt, scheduled, problem, range(k, k + 1))
        advance(scheduler)
    assert len({values["lr"] for values in used}) > 1
    assert (len({values["momentum"] for values in used}) > 1) == (name in ("CyclicLR", "OneCycleLR"))
    other = quiet(by_hand.parameters(), lr=0.05, cycle_length=3)
    for k, values in enumerate(used):
        other.param_groups[0].update(values)
        run(other, by_hand, problem, range(k, k + 1))
    torch.testing.assert_close(scheduled.vector(), by_hand.vector(), rtol=1e-10, atol=1e-12)


def scheduled_run(name, problem):
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), lr=0.05, cycle_length=3)
    return model, opt, SCHEDULERS[name](opt)


def go_on(model, opt, scheduler, problem, steps):
    for k in steps:
        run(opt, model, problem, range(k, k + 1))
        advance(scheduler)


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_a_resumed_run_has_the_same_numbers(name):
    problem = NoisyValley()
    ours = scheduled_run(name, problem)
    go_on(*ours, problem, range(7))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in ours], file)
    go_on(*ours, problem, range(7, 20))
    theirs = scheduled_run(name, problem)
    file.seek(0)
    for part, state in zip(theirs, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    go_on(*theirs, problem, range(7, 20))
    assert ours[1].param_groups[0]["lr"] == theirs[1].param_groups[0]["lr"]
    assert torch.equal(ours[0].vector(), theirs[0].vector())
