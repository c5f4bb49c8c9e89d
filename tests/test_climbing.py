"""D23: cycles that are each worse by no more than their noise must not lead far up together."""

from __future__ import annotations

import copy

import pytest
import torch
from adaqn.optim.counters import FORMAT, migrated
from torch import Tensor, nn

from adaqn import AdaQN, Monitor, RotatingMonitor
from adaqn.core.acceptance import PairedTest

ENTROPY = nn.CrossEntropyLoss()


class Classes:
    """Noisy labels of five classes: losses of single examples spread widely, and a monitor of 128 is noisy."""

    def __init__(self, *, rotates: bool = False, seed: int = 0, **options) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(2000, 20)
        teacher = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))
        with torch.no_grad():
            for p in teacher.parameters():
                p.mul_(3.0)
            self.y = torch.distributions.Categorical(logits=teacher(self.x)).sample()
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
        sets = [(self.x[i : i + 128], self.y[i : i + 128]) for i in range(0, 1920, 128)]
        monitor = RotatingMonitor(self.model, ENTROPY, sets) if rotates else Monitor(self.model, ENTROPY, sets[0])
        self.opt = AdaQN(self.model.parameters(), monitor=monitor, **options)

    def train(self, steps: range) -> None:
        for k in steps:
            rows = torch.randperm(2000, generator=torch.Generator().manual_seed(k))[:32]
            self.opt.zero_grad()
            ENTROPY(self.model(self.x[rows]), self.y[rows]).backward()
            self.opt.step()

    def loss(self) -> float:
        """At the last accepted average, on everything."""
        with torch.no_grad(), self.opt.averaged():
            return float(ENTROPY(self.model(self.x), self.y))


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("preset", ["kronecker", "modern"])
@pytest.mark.parametrize("lr", [0.3, 1.0, 10.0])
def test_steps_that_are_far_too_large_still_learn(lr, preset, rotates):
    problem = Classes(lr=lr, preset=preset, rotates=rotates)
    start = problem.loss()
    problem.train(range(300))
    assert start > 1.6
    assert problem.loss() < start - 0.1
    assert problem.opt.stats.step_multiplier < 1.0


def test_at_a_good_step_size_nothing_is_held_back():
    problem = Classes(lr=0.01)
    problem.train(range(300))
    assert problem.opt.stats.rejected == 0
    assert problem.loss() < 1.1


@pytest.mark.filterwarnings("ignore:50 cycles in a row")
@pytest.mark.parametrize("lr", [1e6, 1e12, 1e20])
def test_no_step_size_rejects_for_ever(lr):
    problem = Classes(lr=lr)
    start = problem.loss()
    problem.train(range(900))
    assert problem.opt.stats.stored > 0
    assert problem.loss() < start


def test_the_best_loss_is_saved_and_goes_on_with_the_same_bits():
    whole, halves = Classes(lr=1.0), Classes(lr=1.0)
    whole.train(range(200))
    halves.train(range(93))
    resumed = Classes(lr=1.0, seed=7)
    resumed.model.load_state_dict(halves.model.state_dict())
    resumed.opt.load_state_dict(copy.deepcopy(halves.opt.state_dict()))
    resumed.train(range(93, 200))
    assert whole.opt.stats == resumed.opt.stats
    assert whole.opt.stats.rejected > 0
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_before_knows_no_best_loss():
    problem = Classes(lr=0.3)
    problem.train(range(40))
    entry = dict(problem.opt.state_dict()["state"][0])
    assert entry["has_best"] == 1
    assert entry["best_error"] > 0
    for name in ("has_best", "best_loss", "best_error"):
        del entry[name]
    older = migrated({**entry, "format": 3})
    assert (older["has_best"], older["best_loss"], older["format"]) == (0, 0, FORMAT)


def test_another_monitor_and_a_new_history_forget_it():
    problem = Classes(lr=0.01)
    for forget in (problem.opt.reset_history, lambda: setattr(problem.opt, "monitor", problem.opt.monitor)):
        problem.train(range(20))
        assert problem.opt._memory.counters.has_best
        forget()
        assert not problem.opt._memory.counters.has_best


def losses(mean: float, spread: float = 1.0) -> Tensor:
    """Their mean is exactly this, and its standard error spread / √100."""
    noise = torch.linspace(-1.0, 1.0, 100, dtype=torch.float64)
    return mean + spread * noise / noise.std()


def test_what_counts_as_a_climb():
    test, best = PairedTest(level=3.0), (1.0, 0.1)
    assert test.has_climbed(losses(1.31), losses(1.25), best)
    assert not test.has_climbed(losses(1.29), losses(1.25), best)
    assert not test.has_climbed(losses(1.9), losses(2.0), best), "it is on its way down"
    assert not test.has_climbed(torch.tensor(9.0), torch.tensor(1.0), best), "one loss knows no noise"
    assert test.has_climbed(losses(1.31, spread=50.0), losses(1.25), best), "a blow-up spreads too"
    assert test.has_climbed(losses(-0.69), losses(-0.75), (-1.0, 0.1))


def test_rounding_is_no_rise():
    old = torch.rand(128) + 1.0
    assert not PairedTest()(torch.nextafter(old, torch.full_like(old, 9.0)), old)
    assert PairedTest()(old + 1e-3, old)
