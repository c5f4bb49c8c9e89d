"""A monitor that is a function of the user's own is tried in the first step, and nobody notices unless it fails."""

import copy
import functools
import random

import numpy
import pytest
import torch
from torch import nn

from adaqn import AdaQN, PairOptions

X, Y = torch.randn(64, 3), torch.randn(64, 1)


class Net(nn.Sequential):
    """With what an evaluation in training mode changes: statistics, and random numbers."""

    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def losses(model):
    return (model(X) - Y).square().mean(1)


def backward(model):
    model.zero_grad()
    losses(model).mean().backward()


def traces(model):
    """All that a call may leave behind."""
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: p.grad.clone() for name, p in model.named_parameters()},
        [module.training for module in model.modules()],
        (torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()),
    )


def raises(model):
    raise ZeroDivisionError("of no use")


@pytest.mark.parametrize(
    "monitor, kind, message",
    [
        (raises, ZeroDivisionError, "of no use"),
        (lambda model: None, TypeError, "the monitor returned NoneType"),
        (lambda model: model(X), ValueError, r"a tensor of shape \(64, 1\)"),
        (lambda model: model(X[:, :2]).mean(), RuntimeError, "shapes cannot be multiplied"),
    ],
    ids=["raises", "nothing", "matrix", "shapes"],
)
def test_a_mistake_shows_in_the_first_step_before_anything_changes(monitor, kind, message):
    model = Net()
    opt = AdaQN(model.parameters(), monitor=lambda: monitor(model))
    backward(model)
    before = traces(model)
    for _ in range(2):  # it stays one until it is mended
        with pytest.raises(kind, match=message):
            opt.step()
    torch.testing.assert_close(traces(model), before, rtol=0.0, atol=0.0)
    assert opt.stats.steps == 0
    opt.monitor = lambda: losses(model)
    opt.step()
    assert opt.stats.steps == 1


class Held:
    """A callable that holds its model in an attribute of an attribute."""

    def __init__(self, model):
        self.parts = {"model": model}

    def __call__(self):
        return careless(self.parts["model"])

    def method(self):
        return self()


def careless(model):
    """It draws numbers, changes statistics and modes, and leaves gradients."""
    torch.rand(3), random.random(), numpy.random.rand()
    with torch.enable_grad():
        found = losses(model)
        found.mean().backward()
    model[1].eval()
    return found


@pytest.mark.parametrize(
    "made",
    [
        lambda model: lambda: careless(model),
        lambda model: functools.partial(careless, model),
        lambda model: Held(model),
        lambda model: Held(model).method,
    ],
    ids=["closure", "partial", "object", "method"],
)
def test_the_try_leaves_no_trace(made):
    """Up to the end of the first cycle, a run with a careless monitor is the run without one."""
    paths = []
    for monitored in (True, False):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        model = Net()
        opt = AdaQN(model.parameters(), **({"monitor": made(model)} if monitored else {"reject": "none"}))
        for _ in range(4):
            backward(model)
            opt.step()
        paths.append(traces(model))
    torch.testing.assert_close(paths[0], paths[1], rtol=0.0, atol=0.0)


def test_it_is_tried_once_and_then_called_at_the_end_of_cycles():
    model, calls = Net(), []
    opt = AdaQN(model.parameters(), monitor=lambda: calls.append(opt.stats.steps) or losses(model))
    for _ in range(4):
        backward(model)
        opt.step()
    assert calls == [0]
    opt.monitor = lambda: calls.append(opt.stats.steps) or losses(model)  # as who gives a new batch in every step
    backward(model)
    opt.step()
    assert calls == [0, *[5] * (len(calls) - 1)]


def test_a_schedule_that_begins_at_zero_puts_off_the_try():
    model, calls = Net(), []
    opt = AdaQN(model.parameters(), monitor=lambda: calls.append(1) or losses(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 10))
    for expected in (0, 1, 1):
        backward(model)
        opt.step()
        schedule.step()
        assert len(calls) == expected


@pytest.mark.parametrize("options", [{"monitor": None}, {"reject": "none"}], ids=["none", "unused"])
def test_what_judges_nothing_is_not_tried(options):
    model = Net()
    opt = AdaQN(model.parameters(), **{"monitor": lambda: raises(model), **options})
    backward(model)
    opt.step()
    assert opt.stats.steps == 1


def test_a_loaded_run_does_not_try_again():
    model = Net()
    first = AdaQN(model.parameters(), monitor=lambda: losses(model))
    for _ in range(6):
        backward(model)
        first.step()
    second = AdaQN(model.parameters(), monitor=lambda: raises(model))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    backward(model)
    second.step()
    assert second.stats.steps == 7


class Turning:
    """A monitor that turns once per cycle, and has no batch before its first turn unless it is given one."""

    def __init__(self, model, turn=None):
        self.model, self.turn, self.wrong = model, turn, False

    def advance(self):
        self.turn = 0 if self.turn is None else self.turn + 1

    def __call__(self):
        if self.wrong:
            raise ZeroDivisionError("of no use")
        return losses(self.model)[[16 * self.turn, 16 * self.turn + 8]]


@pytest.mark.parametrize("turn", [None, 1], ids=["without a batch", "with one"])
def test_a_monitor_that_turns_is_not_turned_by_the_try(turn):
    model = Net()
    monitor = Turning(model, turn)
    opt = AdaQN(model.parameters(), monitor=monitor)
    for expected in (*[turn] * 4, 0 if turn is None else turn + 1):
        backward(model)
        opt.step()
        assert monitor.turn == expected


def test_its_mistakes_show_when_it_was_first_turned():
    model = Net()
    monitor = Turning(model)
    monitor.wrong = True
    opt = AdaQN(model.parameters(), monitor=monitor)
    for _ in range(4):
        backward(model)
        opt.step()
    backward(model)
    with pytest.raises(ZeroDivisionError):
        opt.step()
    assert (monitor.turn, opt.stats.cycles) == (0, 0)


def test_curvature_from_the_monitor_asks_for_its_gradient_in_the_first_step():
    model = Net()

    def detached():
        return losses(model).detach()

    opt = AdaQN(model.parameters(), monitor=detached, pairs=PairOptions(memory_size=3, curvature="monitored"))
    backward(model)
    with pytest.raises(ValueError, match="has no gradient"):
        opt.step()
    assert opt.stats.steps == 0
