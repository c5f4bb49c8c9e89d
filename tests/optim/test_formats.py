"""States saved by every format so far load, and training goes on as it did in the code that saved them."""

from pathlib import Path

import pytest
import torch
from torch import nn

from adaqn import OLBFGS, SQN, AdaQN, HessianProduct, Monitor, PairOptions, RejectOptions, RotatingMonitor
from adaqn.core import schedule

FORMATS = Path(__file__).parent / "formats"
"""Written by the code of their time: 20 steps, the state, and the weights 15 steps later."""
PAIRS = PairOptions(memory_size=2, fisher_size=3)
STEADY = RejectOptions(growth=1.0)
"""Steps did not grow then (D37)."""
RUNS = [
    (1, "paper"), (1, "olbfgs"), (1, "sqn"), (2, "paper"), (2, "modern"), (2, "default"), (3, "paper"), (3, "modern"),
    (3, "default"), (4, "paper"), (4, "modern"), (4, "default"), (4, "rotating"),
    (7, "paper"), (7, "modern"), (7, "default"), (7, "rotating"),
]  # fmt: skip


def per_example(output, target):
    return (output - target).square().mean(1)


def mean(output, target):
    return (output - target).square().mean()


def optimizer(name, model, saved):
    monitor = Monitor(model, per_example, saved["monitored"])
    batches = list(zip(saved["x"], saved["target"], strict=True))
    if name == "paper":
        return AdaQN(model.parameters(), 0.2, monitor=monitor, preset="paper", cycle_length=3, pairs=PAIRS)
    if name == "modern":
        return AdaQN(
            model.parameters(),
            0.05,
            monitor=monitor,
            preset="modern",
            cycle_length="auto",
            pairs=PAIRS,
            warm_up=0,
            reject=STEADY,
        )
    if name == "default":
        return AdaQN(model.parameters(), 0.05, monitor=monitor, cycle_length=3, pairs=PAIRS, warm_up=0, reject=STEADY)
    if name == "rotating":
        rotating = RotatingMonitor(model, per_example, [saved["monitored"], batches[0]])
        return AdaQN(model.parameters(), 0.2, monitor=rotating, cycle_length=3, pairs=PAIRS, warm_up=0, reject=STEADY)
    if name == "sqn":
        curvature = HessianProduct(model, mean, batches[:2])
        return SQN(model.parameters(), 0.1, memory_size=2, cycle_length=3, curvature=curvature)
    return OLBFGS(model.parameters(), 0.1, memory_size=2)


def load(number, name):
    saved = torch.load(FORMATS / f"format_{number}.pt", weights_only=True)
    run = saved["runs"][name]
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    model.load_state_dict(run["model"])
    opt = optimizer(name, model, saved)
    assert {entry["format"] for entry in run["optimizer"]["state"].values()} == {number}
    opt.load_state_dict(run["optimizer"])
    return saved, run, model, opt


def train(model, opt, saved):
    for x, target in list(zip(saved["x"], saved["target"], strict=True))[saved["steps"] :]:

        def closure(x=x, target=target):
            opt.zero_grad()
            loss = mean(model(x), target)
            loss.backward()
            return loss

        if isinstance(opt, OLBFGS):
            opt.step(closure)
        else:
            closure()
            opt.step()


BY_RULE_OF_THEN = [(4, "rotating")]
"""The rule about climbing was another one then, and held a cycle back (D23)."""


@pytest.mark.parametrize("number, name", [run for run in RUNS if run not in BY_RULE_OF_THEN])
def test_training_goes_on_from_a_state_of_any_format(number, name, monkeypatch):
    if number < 7:  # all bases were refreshed in the same steps then: by that timetable the numbers are those of then
        monkeypatch.setattr(schedule, "spread", lambda costs, steps: {key: 0 for key, _ in costs})
    saved, run, model, opt = load(number, name)
    assert opt.stats.steps == saved["steps"]
    train(model, opt, saved)
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(weights, run["after"], rtol=0.0, atol=1e-12)
    assert {what: getattr(opt.stats, what) for what in run["stats"]} == run["stats"]


@pytest.mark.parametrize("number, name", RUNS)
def test_it_is_saved_in_the_format_of_today(number, name):
    saved, _, model, opt = load(number, name)
    today = opt.state_dict()
    other = optimizer(name, model, saved)
    other.load_state_dict(today)
    again = other.state_dict()
    assert today["param_groups"] == again["param_groups"]
    for index, entry in today["state"].items():
        assert entry.keys() == again["state"][index].keys()
        for what, value in entry.items():
            theirs = again["state"][index][what]
            assert torch.equal(value, theirs) if isinstance(value, torch.Tensor) else value == theirs
