"""Verdicts in two looks: which examples are evaluated where, and that nobody can tell from the numbers (D35)."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from adaqn import AdaQN, Monitor, MonitoredGradient, Outcome, PairOptions, RejectOptions, RotatingMonitor
from adaqn.core.acceptance import mean_of_groups
from adaqn.core.looks import EVERY
from inside import buffers, kept
from reads import reads

N, FIRST = 128, 32


class Lines(nn.Module):
    """Example i has the loss aᵢ + bᵢ·w: what a cycle does to it is bᵢ times the way that w has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.noise = 0.0
        """Of each example, and another one wherever w is."""

    def forward(self, a, b):
        return a + b * self.w + self.noise * torch.sin(1e4 * a * self.w)


class Walk:
    """One cycle per step, of a length that the gradient says: lr 1, no scaling, no pairs, no momentum."""

    def __init__(self, slopes, *, level=3.0, first_look=FIRST, batches=None, **options) -> None:
        torch.manual_seed(0)
        self.model, self.evaluated, self.events = Lines(), [], []
        a = torch.rand(len(slopes), dtype=torch.float64) + 1.0

        def loss_fn(output, target):
            self.evaluated.append((round(float(self.model.w), 9), len(output)))
            return output

        kind = Monitor if batches is None else RotatingMonitor
        data = (a, slopes, a) if batches is None else [(a, b, a) for b in batches]
        self.monitor = kind(self.model, loss_fn, data, **options.pop("monitored", {}))
        self.opt = AdaQN(
            self.model.parameters(), 1.0, preset="paper", cycle_length=1, scaling="identity", monitor=self.monitor,
            reject=RejectOptions("paired", level=level, first_look=first_look), on_cycle=self.events.append,
            pairs=PairOptions(eps=1e9, anchor_patience=1), **options,
        )  # fmt: skip
        self.evaluated.clear()

    def go(self, *ways: float) -> None:
        for way in ways:
            self.model.w.grad = torch.tensor(-way, dtype=torch.float64)
            self.opt.step()

    def outcomes(self) -> list[str]:
        return [event.outcome.value for event in self.events]


def slopes(of_first: float, of_rest: float, noise: float = 1.0) -> torch.Tensor:
    """Of the first look and of the others: exactly these means, and that spread."""
    torch.manual_seed(1)
    found = torch.randn(N, dtype=torch.float64)
    for part, mean in ((found[:FIRST], of_first), (found[FIRST:], of_rest)):
        part.sub_(part.mean()).mul_(noise / part.std()).add_(mean)
    return found


CUT = [(0.0, N), (0.0, FIRST)]
"""Where it is tried whether the batch can be cut, in the first cycle."""


def test_what_the_first_look_settles_costs_no_more():
    walk = Walk(slopes(-1.0, -1.0))
    walk.go(0.1, 0.1, 0.1, 0.1)
    assert walk.evaluated == [*CUT, (0.1, 32), (0.1, 96), (0.2, 32), (0.3, 32), (0.4, 32)]
    assert [event.examples for event in walk.events] == [128, 32, 32, 32]
    assert [event.by_first_look for event in walk.events] == [False, True, True, True]
    assert walk.opt.stats.by_first_look == 3
    assert "3 cycles judged by the first look" in str(walk.opt.explain())


def test_what_it_does_not_settle_is_judged_by_all_at_both_points():
    """Worse on the first look, by one standard error, and not by all."""
    walk = Walk(slopes(0.18, -0.1))
    walk.go(0.1, 0.1, 0.1, -0.1, 0.1)
    assert walk.evaluated == [
        *CUT, (0.1, 32), (0.1, 96),
        (0.2, 32), (0.2, 96),  # the anchor's are known
        (0.3, 32), (0.3, 96),
        (0.2, 32),  # the way back is better: the rest is not known there
        (0.3, 32), (0.3, 96), (0.2, 96),
    ]  # fmt: skip
    assert walk.outcomes() == ["started", "skipped", "skipped", "skipped", "skipped"]
    assert [event.examples for event in walk.events] == [128, 128, 128, 32, 128]


def test_a_worse_cycle_is_rejected_by_all():
    walk = Walk(slopes(0.6, 0.6))
    walk.go(0.1, 0.1, 0.1)
    assert walk.outcomes() == ["started", "rejected", "rejected"]
    again = [(0.2, 32), (0.2, 96), (0.1, 32), (0.1, 96)]
    assert walk.evaluated[-8:] == [*again, *again], "the anchor only once more, before a rejection (D39)"


def test_losses_that_are_told_are_of_the_same_examples_in_every_cycle():
    walk = Walk(slopes(0.18, -5.0))
    walk.go(0.1, 0.1, -0.1)
    first = [float(walk.monitor.batch[0][:FIRST].mean() + 0.18 * w) for w in (0.1, 0.2, 0.1)]
    assert [event.candidate_loss for event in walk.events] == pytest.approx(first)
    assert [event.anchor_loss for event in walk.events[1:]] == pytest.approx(first[:2])


def test_one_cycle_in_twenty_is_judged_by_all_examples():
    walk = Walk(slopes(-1.0, -1.0))
    walk.go(*[0.1] * (2 * EVERY + 1))
    assert [event.cycle for event in walk.events if not event.by_first_look] == [1, EVERY, 2 * EVERY]


@pytest.mark.parametrize("of_first", [0.5, -0.5, 0.0], ids=["rises", "falls", "does not change"])
def test_a_slow_climb_is_found(of_first):
    """D23: every cycle is within its noise, but together they are not; whatever the first look shows of it."""
    b = slopes(of_first, 0.9)
    walk, always = Walk(b), Walk(b, first_look=0)
    for both in (walk, always):
        both.model.noise = 1.0
        both.go(*[0.02] * 45)
    found, known = (w.outcomes().index("rejected") for w in (walk, always))
    assert known > 5, "one cycle alone is within its noise"
    assert known <= found <= known + EVERY
    assert walk.opt.stats.step_multiplier < 1.0


def best_loss(opt):
    return mean_of_groups(next(iter(opt.state_dict()["state"].values()))["best_losses"])


def test_the_best_loss_is_of_all_examples():
    walk = Walk(slopes(-1.0, -1.0))
    walk.go(0.1)
    first = best_loss(walk.opt)
    walk.go(*[0.1] * 10)
    assert best_loss(walk.opt) == first, "first looks say nothing of it"
    walk.go(*[0.1] * (EVERY - 11))
    assert best_loss(walk.opt) == pytest.approx(first - 0.1 * (EVERY - 1))


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 9, 13])
def test_a_resumed_run_has_the_same_verdicts_and_bits(stop):
    def run():
        return Walk(slopes(0.15, 0.05, noise=0.5), level=1.0)

    ways = [0.1, -0.2, 0.1, 0.03, -0.1, 0.2, 0.01, 0.01, -0.3, 0.2, 0.1, -0.2, 0.1, 0.1, 0.3, -0.4, 0.1]
    whole, before, after = run(), run(), run()
    whole.go(*ways)
    before.go(*ways[:stop])
    after.model.load_state_dict(before.model.state_dict())
    after.opt.load_state_dict(copy.deepcopy(before.opt.state_dict()))
    after.go(*ways[stop:])
    assert whole.events == before.events + after.events
    assert torch.equal(whole.model.w, after.model.w)
    assert whole.opt.stats == after.opt.stats
    looked = [event.by_first_look for event in whole.events[1:]]
    assert any(looked)
    assert not all(looked)
    assert "rejected" in whole.outcomes()


# ---------------------------------------------------------------------- where there is one look


def settled(walk) -> int:
    walk.go(*[0.1] * 4)
    return walk.opt.stats.by_first_look


def test_no_looks_where_they_are_not_asked_for_or_save_nothing():
    falling = slopes(-1.0, -1.0)
    assert settled(Walk(falling)) == 3
    assert settled(Walk(falling, first_look=0)) == 0
    assert settled(Walk(falling[:63])) == 0, "less than twice the first look"
    assert settled(Walk(falling[:64])) == 3
    assert settled(Walk(falling, first_look=65)) == 0


def optimizer(monitor, model, **reject):
    return AdaQN(model.parameters(), 1e-3, preset="modern", monitor=monitor, reject=RejectOptions(**reject))


def regression(count=N, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True))


def train(model, opt, steps, batch=None):
    x, target = batch or regression()
    for _ in range(steps):
        opt.zero_grad()
        nn.functional.mse_loss(model(x), target).backward()
        opt.step()
    return opt


def each(output, target):
    return (output - target).square().mean(1)


class Contrasting(nn.Module):
    """Every example is compared with the mean of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        found = self.linear(x)
        return found - found.mean() * 3.0


class OneLength(nn.Linear):
    def forward(self, x):
        assert len(x) == N, "made for one batch size"
        return super().forward(x)


class Own(Monitor):
    def __call__(self):
        return super().__call__() * 2.0


@pytest.mark.parametrize(
    "make",
    [
        lambda net, x, y: lambda: each(net(x), y).detach(),
        lambda net, x, y: Monitor(net, lambda output, target: each(output, target).mean(), (x, y)),
        lambda net, x, y: Own(net, each, (x, y)),
        lambda net, x, y: Monitor(net, lambda output, target: each(output, y), (x, y)),
        lambda net, x, y: Monitor(Both(net), lambda output, target: each(output, y), (x, torch.ones(3), y)),
    ],
    ids=["a function", "a scalar", "somebody's own", "a loss for all examples", "lengths that differ"],
)
@pytest.mark.filterwarnings("ignore:the monitor returns one number")
def test_what_cannot_be_cut_is_looked_at_once(make):
    net, (x, y) = nn.Linear(4, 1), regression()
    opt = train(net, optimizer(make(net, x, y), net), 20)
    assert opt.stats.cycles == 4
    assert opt.stats.by_first_look == 0
    assert opt.last_cycle.examples in (0, N)


class Both(nn.Module):
    def __init__(self, net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x, ones):
        return self.net(x) * ones.mean()


@pytest.mark.parametrize("net", [Contrasting(), OneLength(4, 1)], ids=["contrasting", "one length"])
def test_a_model_that_sees_all_examples_at_once_is_shown_all_of_them(net):
    opt = train(net, optimizer(Monitor(net, each, regression()), net), 20)
    assert opt.stats.by_first_look == 0


def test_a_factor_test_has_one_look():
    net = nn.Linear(4, 1)
    assert train(net, optimizer(Monitor(net, each, regression()), net, test="factor"), 20).stats.by_first_look == 0


@pytest.mark.parametrize("value, error", [(-1, ValueError), (1, ValueError), (2.5, TypeError), (True, TypeError)])
def test_a_first_look_that_is_none_is_refused(value, error):
    with pytest.raises(error, match="first_look must be"):
        AdaQN([nn.Parameter(torch.ones(2))], reject=RejectOptions(first_look=value))


# ---------------------------------------------------------------------- monitors of every kind


def test_a_rotating_monitor_looks_at_both_points_anew():
    falling, rising = slopes(-1.0, -1.0), slopes(0.18, -0.1)
    walk = Walk(falling, batches=[falling, rising, falling])
    walk.go(0.1, 0.1, 0.1)
    assert walk.evaluated == [
        *CUT, (0.1, 32), (0.1, 96),
        (0.2, 32), (0.1, 32),
        (0.3, 32), (0.2, 32),
    ]  # fmt: skip
    walk.go(0.1)  # the set that is not settled
    assert walk.evaluated[-4:] == [(0.4, 32), (0.3, 32), (0.4, 96), (0.3, 96)]


def test_statistics_that_change_have_both_points_looked_at_anew():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    sizes = []

    def loss_fn(output, target):
        sizes.append(len(output))
        return each(output, target)

    opt = optimizer(Monitor(net, loss_fn, regression()), net)
    train(net, opt, 10)
    sizes.clear()
    train(net, opt, 5)
    assert opt.last_cycle.by_first_look
    assert sizes == [32, 32]


def test_chunks_are_within_looks():
    walk = Walk(slopes(0.18, -0.1), monitored={"chunk": 40})
    walk.go(0.1, 0.1)
    assert walk.evaluated[-4:] == [(0.2, 32), (0.2, 40), (0.2, 40), (0.2, 16)]


def test_maximize_settles_what_is_not_smaller():
    walk = Walk(slopes(1.0, 1.0), maximize=True)
    for _ in range(4):
        walk.model.w.grad = torch.tensor(0.1, dtype=torch.float64)
        walk.opt.step()
    assert walk.evaluated == [*CUT, (0.1, 32), (0.1, 96), (0.2, 32), (0.3, 32), (0.4, 32)]
    assert walk.events[-1].candidate_loss > walk.events[-1].anchor_loss


@pytest.mark.parametrize("examples, parts", [(None, [128]), (32, [32]), (10, [10, 22]), (40, [40])])
def test_a_curvature_of_the_monitored_gradient_takes_it_from_the_first_look(examples, parts):
    """Where it needs all examples, the verdict has them, too."""
    torch.manual_seed(0)
    net, sizes = nn.Linear(4, 1), []

    def loss_fn(output, target):
        sizes.append((len(output), output.requires_grad))
        return each(output, target)

    def make():
        return AdaQN(
            net.parameters(), 1e-3, preset="modern", monitor=Monitor(net, loss_fn, regression()),
            pairs=PairOptions(curvature=MonitoredGradient(examples=examples)),
        )  # fmt: skip

    opt = train(net, make(), 10)
    sizes.clear()
    train(net, opt, 5)
    assert sizes == [(size, i == 0) for i, size in enumerate(parts)]
    assert opt.stats.by_first_look == (0 if examples is None else 2)
    assert opt.stats.stored == 2
    x, target = (part[: examples or N] for part in regression())
    there = nn.Linear(4, 1)
    nn.utils.vector_to_parameters(kept(opt, "anchor"), there.parameters())
    expected = torch.autograd.grad(nn.functional.mse_loss(there(x), target), list(there.parameters()))
    known, _ = buffers(opt)["fisher"]
    assert torch.allclose(known, torch.cat([g.reshape(-1) for g in expected]), atol=1e-6)


# ---------------------------------------------------------------------- what is not finite


def overflowing(*examples: int) -> torch.Tensor:
    """Slopes of which these are so steep that the loss is infinite from w = 2 on."""
    found = slopes(-1.0, -1.0)
    found[list(examples)] = 1e308
    return found


def test_a_loss_of_the_first_look_that_is_not_finite_is_rejected_by_it():
    walk = Walk(overflowing(3))
    walk.go(0.0, 2.0)
    assert walk.outcomes() == ["started", "rejected"]
    assert walk.evaluated[-1] == (2.0, 32)


def test_one_of_the_others_is_found_by_the_next_look_at_all():
    walk = Walk(overflowing(100))
    walk.go(0.0, 2.0)
    assert walk.outcomes()[-1] == "skipped"
    with pytest.warns(UserWarning, match=r"only the first look at 32 examples judges a cycle"):
        walk.go(-0.2)  # worse on the first look, so all are looked at: the anchor's are not finite
    assert walk.outcomes()[-1] == "rejected", "by the first look"


def test_a_look_at_all_that_is_due_finds_it_too():
    walk = Walk(overflowing(100))
    walk.go(0.0, 2.0, *[0.01] * (EVERY - 4))
    with pytest.warns(UserWarning, match=r"the monitored loss is inf, because of examples outside the first look"):
        walk.go(0.1, 0.1)
    assert "rejected" not in walk.outcomes()
    assert walk.opt.stats.cycles == EVERY


def test_a_set_that_cannot_judge_says_so_at_the_start():
    walk = Walk(slopes(-1.0, -1.0))
    walk.monitor.batch[0][100] = math.nan
    with pytest.raises(ValueError, match="the monitoring batch or its loss is at fault"):
        walk.go(0.1)


# ---------------------------------------------------------------------- reads


def test_a_cycle_of_two_looks_reads_twice():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1), torch.randn(64, 4)
    noise = torch.randn(N, 1)
    monitor = Monitor(net, each, (torch.randn(N, 4), noise))
    opt = AdaQN(net.parameters(), 1e-2, monitor=monitor, preset="modern")
    looks = {True: 0, False: 0}
    with reads() as noted:
        for k in range(150):
            opt.zero_grad()
            (net(x) - torch.randn(64, 1)).square().mean().backward()
            before, cycle = len(noted.lines), opt.last_cycle
            opt.step()
            if k >= 10 and opt.last_cycle is not cycle:
                looks[opt.last_cycle.by_first_look] += opt.last_cycle.outcome is not Outcome.REJECTED
                assert len(noted.lines) - before <= 2, "\n".join(noted.lines[before:])
    assert min(looks.values()) > 3


def test_a_look_that_raises_loses_nothing():
    walk = Walk(slopes(0.18, -0.1))
    walk.go(0.1)
    state = copy.deepcopy(walk.opt.state_dict())
    fails = [True]

    def broken(output, target):
        if fails[0] and len(output) == N - FIRST:
            raise ZeroDivisionError
        return output

    walk.monitor.loss_fn = broken
    with pytest.raises(ZeroDivisionError):
        walk.go(0.1)
    assert walk.opt.stats.cycles == 1
    assert torch.equal(walk.opt.state_dict()["state"][0]["anchor"], state["state"][0]["anchor"])
    fails[0] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        walk.go(0.0)
    assert walk.opt.stats.cycles == 2
