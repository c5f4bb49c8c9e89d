"""When a run is told to try three times the step size: real trainings, at good step sizes and at a third of them."""

import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from adaqn import AdaQN, Monitor
from adaqn.explain.explanation import explain
from adaqn.explain.record import Record, record_of

GOOD, SHORT = 0.02, 0.0023
STEPS = 400


def cosine(opt, lr):
    return LambdaLR(opt, lambda k: min((k + 1) / 40, 0.5 + 0.5 * math.cos(math.pi * max(0, k - 40) / (STEPS - 40))))


SCHEDULES = {
    "constant": lambda opt, lr: LambdaLR(opt, lambda k: 1.0),
    "cosine": cosine,
    "one-cycle": lambda opt, lr: OneCycleLR(opt, lr, total_steps=STEPS + 1, pct_start=0.1, cycle_momentum=False),
}


@cache
def trained(lr, schedule, steps=STEPS):
    """(What was said of short steps after each five cycles, the loss at the average, the optimizer)."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 6))
    x = torch.randn(4096, 16)
    y = (6.0 * teacher(x) + torch.randn(4096, 6)).argmax(1)
    net, loss_fn = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 6)), nn.CrossEntropyLoss()
    opt = AdaQN(net.parameters(), lr=lr, monitor=Monitor(net, loss_fn, (x[:256], y[:256])))
    scheduler, said = SCHEDULES[schedule](opt, lr), {}
    for k in range(1, steps + 1):
        batch = torch.randint(0, len(x), (32,))
        opt.zero_grad()
        loss_fn(net(x[batch]), y[batch]).backward()
        opt.step()
        scheduler.step()
        if k % 25 == 0:
            said[k // 5] = next((finding for finding in opt.explain().findings if finding.name == "slow"), None)
    with opt.averaged(), torch.no_grad():
        return said, float(loss_fn(net(x), y)), opt


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_good_step_size_is_never_said_to_be_short(schedule):
    said, _, _ = trained(GOOD, schedule)
    assert not any(said.values())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_short_one_is_said_to_be_and_three_times_as_much_is_better(schedule):
    said, loss, _ = trained(SHORT, schedule)
    first = min(cycle for cycle, finding in said.items() if finding)
    assert 35 <= first <= 45
    assert said[STEPS // 5] is not None  # at the end, when a schedule has come to zero, too
    assert f"try lr={3 * SHORT:g}, three times as much" in said[STEPS // 5].change
    _, larger, _ = trained(3 * SHORT, schedule)
    assert larger < loss


def test_nothing_is_said_while_a_warm_up_lasts():
    torch.manual_seed(0)
    w = nn.Parameter(torch.ones(4))
    opt = AdaQN([w], lr=1e-3, monitor=lambda: w.detach().square() * torch.ones(4), warm_up=0)
    scheduler = LambdaLR(opt, lambda k: (k + 1) / 1000)
    for _ in range(300):
        opt.zero_grad()
        w.square().sum().backward()
        opt.step()
        scheduler.step()
        assert "slow" not in {finding.name for finding in opt.explain().findings}
    scheduler.lr_lambdas = [lambda k: 1.0]
    for _ in range(200):
        opt.zero_grad()
        w.square().sum().backward()
        opt.step()
        scheduler.step()
    assert "slow" in {finding.name for finding in opt.explain().findings}


def test_the_cycles_of_full_size_survive_json_and_are_missing_in_older_files():
    record = record_of(trained(SHORT, "cosine")[2])
    assert record.full
    assert record.cycles[-1].lr < min(cycle.lr for cycle in record.full)
    assert Record.from_json(record.to_json()) == record
    older = {name: value for name, value in record.to_json().items() if name != "full"}
    assert "slow" not in {finding.name for finding in explain(Record.from_json(older)).findings}
