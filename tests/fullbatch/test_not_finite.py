"""Losses and gradients that are not finite, zero gradients, and searches that fail."""

import math

import pytest
import torch
from torch import nn

import adaqn
import inside
from adaqn.core.line_search import Found
from adaqn.core.outcome import Outcome
from fullbatch.problems import EVERY_SEARCH, SEARCHES, Problem, convex, network, plain, valley

NOT_FINITE = "the loss or the gradient is not finite, so the weights stay as they are"


def spoilt(problem, opt, value=math.nan, *, gradient=False, when=lambda calls: True):
    """The closure, with a loss or one entry of the gradient that is not finite at some of its calls."""

    def closure():
        loss = problem.closure(opt)()
        if not when(problem.calls):
            return loss
        if gradient:
            problem.parameters()[-1].grad.view(-1)[0] = value
        return loss if gradient else loss.detach() * 0.0 + value

    return closure


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("gradient", [True, False])
def test_at_the_start_nothing_happens_and_it_is_said(search, value, gradient):
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search, scaling="adam", lr=1.0 if search else 0.1)
    problem.run(opt, 2)
    before, pairs = problem.vector(), opt.stats.pairs
    with pytest.warns(UserWarning, match=NOT_FINITE):
        opt.step(spoilt(problem, opt, value, gradient=gradient))
    assert torch.equal(problem.vector(), before)
    assert (opt.stats.reason, opt.stats.nonfinite, opt.stats.pairs) == (NOT_FINITE, 1, pairs)
    assert (opt.stats.loss is None) is (search is None or not gradient)  # with a bad gradient the loss is known
    loss = problem.loss().item()
    problem.run(opt, 3)
    assert opt.stats.noise == 0.0  # losses that are no numbers are no measure of noise
    assert problem.loss().item() < loss
    other = adaqn.LBFGS(network().parameters(), line_search_fn=search, scaling="adam")
    other.load_state_dict(opt.state_dict())


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("scaling", ["identity", "kronecker"])
def test_within_a_search_the_step_becomes_shorter_and_nothing_of_it_is_kept(search, gradient, scaling):
    """Beyond a wall the loss is not finite; the minimum lies before it."""
    w = nn.Parameter(torch.full((6,), 0.2, dtype=torch.float64))
    problem = Problem(nn.ParameterList([w]), lambda: (w - 0.9).square().sum() + (w - 0.5).pow(4).sum())
    opt = adaqn.LBFGS([w], line_search_fn=search, scaling=scaling, lr=50.0, max_iter=30, max_eval=300)
    closure = spoilt(problem, opt, gradient=gradient, when=lambda _: float(w.detach().max()) > 1.0)
    opt.step(closure)
    assert opt.stats.nonfinite > 0
    assert float(w.detach().max()) <= 1.0
    assert problem.loss().item() < 0.101  # it is 0.1005 at the minimum
    pairs = inside.pairs(opt)
    assert pairs
    assert all(s.isfinite().all() and y.isfinite().all() and s @ y > 0 for s, y in pairs)
    assert all(t.isfinite().all() for t in inside.buffers(opt).values())


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("gradient", [True, False])
def test_every_trial_that_is_not_finite_leaves_the_weights_as_they_were(search, gradient):
    problem = convex()
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search, scaling="adam", max_eval=200)
    before = problem.vector()
    closure = spoilt(problem, opt, gradient=gradient, when=lambda calls: calls > 1)
    if search is None:
        with pytest.warns(UserWarning, match=NOT_FINITE):
            opt.step(closure)
    else:
        opt.step(closure)
        assert "nothing finite was found" in opt.stats.reason
    assert torch.equal(problem.vector(), before)
    assert opt.stats.nonfinite == problem.calls - 1
    assert opt.stats.pairs == 0
    assert "not finite" in str(opt.explain())
    problem.run(opt, 3)
    assert opt.stats.stored > 0


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_a_gradient_of_zero_is_the_end(search):
    w = nn.Parameter(torch.zeros(4))
    opt = adaqn.LBFGS([w], line_search_fn=search, tolerance_grad=0.0)
    problem = Problem(nn.ParameterList([w]), lambda: (w**2).sum())
    opt.step(problem.closure(opt))
    assert opt.stats.reason == "the gradient is zero"
    assert torch.equal(w.detach(), torch.zeros(4))
    assert problem.calls == 1


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_lr_zero_moves_nothing_and_forgets_nothing(search):
    """Warm-ups start at zero."""
    problem = network()
    opt = plain(problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.1)
    problem.run(opt, 2)
    pairs, before, lr = opt.stats.pairs, problem.vector(), opt.param_groups[0]["lr"]
    opt.param_groups[0]["lr"] = 0.0
    opt.step(problem.closure(opt))
    assert torch.equal(problem.vector(), before)
    assert opt.stats.reason == "lr is 0"
    assert opt.stats.pairs >= pairs > 0
    assert opt.stats.restarts == 0
    opt.param_groups[0]["lr"] = lr
    problem.run(opt, 1)
    assert not torch.equal(problem.vector(), before)


# ---------------------------------------------------------------------- restarts


def uphill(problem, opt, after=0):
    """A gradient with the wrong sign: every direction leads up."""

    def closure():
        loss = problem.closure(opt)()
        if problem.calls > after:
            for p in problem.parameters():
                p.grad.neg_()
        return loss

    return closure


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("scaling", ["identity", "adam"])
def test_a_search_that_fails_tries_h0_then_the_gradient_then_stops(search, scaling):
    problem = valley()
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search, scaling=scaling, max_iter=6, max_eval=400)
    problem.run(opt, 1)
    assert opt.stats.pairs > 0
    before, pairs, restarts = problem.vector(), opt.stats.pairs, opt.stats.restarts
    opt.step(uphill(problem, opt))
    assert torch.equal(problem.vector(), before)
    assert "no lower loss along the gradient itself" in opt.stats.reason
    assert opt.stats.pairs == 0 < pairs
    assert opt.stats.restarts == restarts + (1 if scaling == "identity" else 2)
    said = str(opt.explain())
    assert "the closure may not return the loss whose gradient it computes" in said
    loss = problem.loss().item()
    problem.run(opt, 1)  # and goes on with the right gradient
    assert problem.loss().item() < loss


@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
def test_a_restart_that_finds_a_lower_loss_goes_on(scaling):
    """A search that refuses the first direction it is shown."""
    problem, refused = valley(), []
    good = adaqn.core.strong_wolfe.StrongWolfe()

    def search(line, start, first, **options):
        if opt.stats.pairs > 0 and not refused:
            refused.append(first)
            return Found(start, False, "on purpose", 0)
        return good(line, start, first, **options)

    events = []
    opt = adaqn.LBFGS(
        problem.parameters(), line_search_fn=search, scaling=scaling, max_iter=6, max_eval=100, on_cycle=events.append
    )
    before = problem.loss().item()
    opt.step(problem.closure(opt))
    assert refused
    assert opt.stats.restarts == 1
    assert opt.stats.iterations == 6
    assert problem.loss().item() < before
    assert all(event.outcome is Outcome.STORED for event in events)
    assert events[1].pairs == 1  # those before it are gone
    assert opt.param_groups[0]["line_search_fn"] == "function"


@pytest.mark.parametrize("search", SEARCHES)
def test_noise_in_the_gradient_never_raises_the_loss(search):
    problem = valley()
    generator = torch.Generator().manual_seed(0)
    opt = plain(problem.parameters(), line_search_fn=search, max_iter=40, max_eval=200)

    def closure():
        loss = problem.closure(opt)()
        for p in problem.parameters():
            p.grad.add_(torch.randn(p.shape, dtype=p.dtype, generator=generator))
        return loss

    loss = problem.loss().item()
    for _ in range(4):
        opt.step(closure)
        assert problem.loss().item() <= loss * (1 + 1e-5) + 1e-5  # Hager and Zhang's may rise by 1e-6 of it
        loss = problem.loss().item()


@pytest.mark.parametrize("make", [adaqn.LBFGS, adaqn.BFGS])
@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker_secant"])
def test_a_gradient_whose_square_overflows_is_finite(make, scaling):
    w = nn.Parameter(torch.linspace(1.0, 2.0, 6))
    problem = Problem(nn.ParameterList([w]), lambda: 1e22 * (w * w * torch.linspace(1.0, 3.0, 6)).sum())
    before = problem.loss().item()
    opt = make([w], scaling=scaling, max_iter=20, max_eval=100)
    problem.run(opt, 1)
    assert "not finite" not in opt.stats.reason
    assert opt.stats.loss < 1e-3 * before


@pytest.mark.parametrize("max_iter", [1, 4])
@pytest.mark.parametrize("scaling", ["identity", "kronecker_secant"])
def test_no_step_without_a_search_leads_to_weights_that_are_not_finite(max_iter, scaling):
    """What a parameter of half precision cannot hold: one huge gradient behind a pair, then the right ones again."""
    w = nn.Parameter(torch.linspace(1.0, 2.0, 6).half())
    opt = adaqn.LBFGS([w], lr=0.5, line_search_fn=None, max_iter=max_iter, scaling=scaling)

    def closure(factor=1e-3):
        w.grad = w.detach() * factor
        return 5e-4 * w.detach().double().square().sum()

    for _ in range(4 // max_iter):
        opt.step(closure)
    before = w.detach().clone()
    with pytest.warns(UserWarning, match="the step leads to weights that are not finite, so they stay as they are"):
        opt.step(lambda: closure(1e3))
    assert torch.equal(w.detach(), before)
    assert (opt.stats.nonfinite, opt.stats.pairs) == (1, 0)
    for _ in range(4):
        opt.step(closure)
    assert opt.stats.nonfinite == 1
    assert 0.0 < w.detach().norm() < before.norm()
    assert opt.stats.stored > 0


@pytest.mark.parametrize("method", [adaqn.LBFGS, adaqn.BFGS])
def test_a_length_that_the_dtype_cannot_hold_is_like_one_whose_loss_is_not_finite(method):
    """torch would not convert 1e300 to float32; a search may ask for it, whatever lr is."""
    tried = []

    def search(line, start, first, **_):
        tried.append(line(1e300))
        return Found(line(1e-3), True, "short", 2)

    w = nn.Parameter(torch.full((3,), 0.2))
    problem = Problem(nn.ParameterList([w]), lambda: (w - 0.9).square().sum())
    opt = method([w], line_search_fn=search, max_iter=1)
    before = problem.loss().item()
    problem.run(opt, 1)
    assert tried[0].value == math.inf
    assert opt.stats.nonfinite == 1
    assert problem.loss().item() < before
