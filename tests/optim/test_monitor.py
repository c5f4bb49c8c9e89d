"""The monitored loss: no side effects, any make of callable, one clear error."""

import copy
import math

import pytest
import torch
from torch import nn

from adaqn import AdaQN, Monitor, PairOptions, RejectOptions, RotatingMonitor
from oracles import NoisyValley, Vector, as_printed, quiet, run
from scripted import follow


class Awkward(nn.Module):
    """Dropout, batch norm, a frozen submodule in eval mode, and a buffer written in every forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(4).eval()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        noise = torch.rand(()) * 0.0
        return self.frozen(self.dropout(self.norm(self.linear(x)))).sum(-1) + noise


def test_evaluation_has_no_side_effects():
    model = Awkward()
    monitor = Monitor(model, nn.MSELoss(), (torch.randn(8, 4), torch.randn(8)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first = monitor()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not model.frozen.training
    assert not first.requires_grad
    assert torch.equal(first, monitor()), "eval mode: dropout must not make the loss random"


def test_everything_comes_back_when_the_loss_raises():
    model = Awkward()

    def broken(output, target):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Monitor(model, broken, (torch.randn(8, 4), torch.randn(8)))
    assert model.training
    assert model.calls == 0


def test_autocast_is_as_given_not_as_around():
    model, batch = nn.Linear(64, 64), (torch.randn(32, 64), torch.randn(32, 64))
    seen = []

    def loss(output, target):
        seen.append(output.dtype)
        return nn.functional.mse_loss(output.float(), target)

    plain, low = Monitor(model, loss, batch), Monitor(model, loss, batch, autocast=torch.bfloat16)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        inside = plain()
    assert torch.equal(inside, plain())
    assert low().dtype == torch.float32
    assert seen == [torch.float32, torch.float32, torch.bfloat16]


def test_a_low_precision_loss_is_reduced_in_float32():
    losses = torch.linspace(1, 2, 999).bfloat16()
    model = nn.Linear(1, 1).bfloat16()
    monitor = Monitor(model, lambda out, target: losses, (torch.ones(1, 1).bfloat16(), None))
    assert torch.equal(monitor(), losses.float())
    assert monitor().dtype == torch.float32


def test_mappings_and_several_inputs():
    class Two(nn.Module):
        def forward(self, a, b):
            return a + b

    x = torch.ones(3)
    assert Monitor(Two(), lambda out, t: (out - t).sum(), (x, x, 2 * x))() == 0
    assert Monitor(Two(), lambda out, batch: (out - batch["a"]).sum(), {"a": x, "b": x})() == 3


@pytest.mark.parametrize("batch", [torch.ones(3), (torch.ones(3),), 7])
def test_a_batch_that_is_none_is_refused(batch):
    with pytest.raises(ValueError, match=r"\(\*inputs, target\) or a mapping"):
        Monitor(nn.Linear(1, 1), nn.MSELoss(), batch)


@pytest.mark.parametrize("value", [1.0, 1, torch.tensor(1.0), torch.ones(5), torch.ones(5).bfloat16()], ids=str)
def test_any_callable_with_a_scalar_or_per_example_losses_will_do(value):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), monitor=lambda: value, cycle_length=2)
    run(opt, model, problem, range(6))
    assert (opt.stats.cycles, opt.stats.rejected, opt.stats.stored) == (3, 0, 2)


def test_the_mean_of_per_example_losses_decides():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), cycle_length=1, reject=RejectOptions(factor=1.0))
    follow(opt, torch.tensor([1.0, 3.0]), torch.tensor([0.0, 3.9]), torch.tensor([0.0, 4.1]))
    run(opt, model, problem, range(3))
    assert (opt.stats.stored, opt.stats.rejected) == (1, 1)


@pytest.mark.parametrize(
    "value, error, message",
    [
        (torch.ones(2, 3), ValueError, r"shape \(2, 3\).*scalar loss or a non-empty 1-D"),
        (torch.ones(0), ValueError, r"shape \(0,\)"),
        (None, TypeError, "returned NoneType"),
        ("0.3", TypeError, "returned str"),
        (math.nan, ValueError, "nan and, at the weights before the first step, nan.*monitoring batch"),
    ],
    ids=["matrix", "empty", "nothing", "string", "nan"],
)
def test_a_monitor_that_returns_something_else_is_one_error(value, error, message):
    problem = NoisyValley()
    model, plain = Vector(problem.w0), Vector(problem.w0)
    opt = as_printed(model.parameters(), lr=0.05, monitor=lambda: value, cycle_length=2)
    expected = run(quiet(plain.parameters(), lr=0.05, cycle_length=2), plain, problem, range(2))
    run(opt, model, problem, range(1))
    with pytest.raises(error, match=message):
        run(opt, model, problem, range(1, 2))
    assert torch.equal(model.vector(), expected[-1])
    assert opt.stats.cycles == 0


def test_without_a_monitor_it_says_so_once():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), cycle_length=2)
    with pytest.warns(UserWarning, match="no monitor was given") as caught:
        run(opt, model, problem, range(10))
    assert len(caught) == 1


def test_fifty_cycles_without_a_pair_are_said_once():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=1, pairs=PairOptions(eps=1e9))
    run(opt, model, problem, range(49))
    with pytest.warns(UserWarning, match=r"50 cycles in a row stored no curvature pair.*opt\.explain\(\)") as caught:
        run(opt, model, problem, range(49, 200))
    assert len(caught) == 1


def test_maximize_judges_by_the_other_sign():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = follow(as_printed(model.parameters(), cycle_length=1, maximize=True), 1.0, 2.0, 1.0)
    run(opt, model, problem, range(3))
    assert (opt.stats.stored, opt.stats.rejected) == (1, 1)


def test_events_tell_each_cycle():
    problem = NoisyValley()
    model, events = Vector(problem.w0), []
    opt = follow(as_printed(model.parameters(), cycle_length=2, on_cycle=events.append), 3.0, 2.0, 9.0)
    run(opt, model, problem, range(6))
    assert [(e.step, e.cycle, e.outcome.name, e.candidate_loss, e.anchor_loss) for e in events] == [
        (2, 1, "STARTED", 3.0, None),
        (4, 2, "STORED", 2.0, 3.0),
        (6, 3, "REJECTED", 9.0, 2.0),
    ]
    assert events[1].sy > 0
    assert events[1].pairs == 1
    assert events[2].pairs == 0


def with_statistics(net, steps):
    """Trains with batch norm; returns the optimizer and the events of its cycles."""
    events = []
    opt = AdaQN(net.parameters(), monitor=Monitor(net, nn.MSELoss(), regression(-1, 64)), on_cycle=events.append)
    train(net, opt, steps)
    return opt, events


def regression(k, count=16):
    generator = torch.Generator().manual_seed(1000 + k)
    x = torch.randn(count, 4, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True))


def train(net, opt, steps):
    for k in steps:
        opt.zero_grad()
        x, target = regression(k)
        nn.functional.mse_loss(net(x), target).backward()
        opt.step()


def test_both_points_are_judged_with_the_same_statistics():
    """D8: batch norm's have moved on since the anchor was evaluated, and a resumed run could not know the old ones."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    resumed = copy.deepcopy(net)
    opt, events = with_statistics(net, range(23))
    model_state, state = copy.deepcopy((net.state_dict(), opt.state_dict()))
    train(net, opt, range(23, 50))
    other, later = with_statistics(resumed, [])
    resumed.load_state_dict(model_state)
    other.load_state_dict(state)
    train(resumed, other, range(23, 50))
    assert events[4:] == later


def test_buffers_that_stay_as_they_are_cost_no_second_evaluation():
    net, calls = nn.Linear(4, 1), []
    net.register_buffer("mask", torch.ones(3))

    def loss_fn(output, target):
        calls.append(1)
        return (output - target).square().mean(1)

    monitor = Monitor(net, loss_fn, regression(-1, 64))
    opt = AdaQN(net.parameters(), 1e-4, monitor=monitor, reject=RejectOptions(first_look=0))
    train(net, opt, range(25))
    assert opt.stats.rejected == 0
    assert len(calls) == 7  # when it was made, the start, and five cycles


def test_a_rotating_monitor_assigned_after_loading_takes_up_its_turn():
    net = nn.Linear(4, 1)
    batches = [regression(k) for k in range(10)]
    opt = AdaQN(net.parameters(), monitor=RotatingMonitor(net, nn.MSELoss(), batches))
    train(net, opt, range(17))
    other = AdaQN(net.parameters())
    other.load_state_dict(opt.state_dict())
    other.monitor = RotatingMonitor(net, nn.MSELoss(), batches)
    assert other.monitor.position == opt.monitor.position == 3
