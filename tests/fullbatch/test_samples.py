"""Losses of resampled data: a pair is of one sample, a search trusts no difference below the noise."""

import pytest
import torch
from torch import nn

import adaqn
import inside
from fullbatch.problems import EVERY_SEARCH, SEARCHES, convex, flat, network, plain
from oracles import Vector, random_spd, relative_error


class Sampled:
    """½wᵀAw − b·w with another b in every sample: gradients of two samples differ, the Hessian is always A."""

    def __init__(self, spread=1.0, n=12):
        generator = torch.Generator().manual_seed(0)
        self.A = random_spd(n, generator)
        self.bs = spread * torch.randn(1000, n, dtype=torch.float64, generator=generator)
        self.model = Vector(torch.randn(n, dtype=torch.float64, generator=generator))
        self.number = self.calls = 0

    def parameters(self):
        return list(self.model.parameters())

    def closure(self, opt):
        self.calls += 1
        opt.zero_grad()
        w = flat(self.model.pieces)
        loss = 0.5 * w @ self.A @ w - self.bs[self.number] @ w
        loss.backward()
        return loss

    def assert_pairs_are_of_one_sample(self, opt):
        """y = A·s then; with two samples it has b − b′ in it."""
        pairs = inside.pairs(opt)
        assert pairs
        for s, y in pairs:
            assert relative_error(y, self.A @ s) < 1e-6


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_pairs_never_mix_samples_that_are_told_between_steps(search):
    problem = Sampled()
    opt = plain(
        problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.2, max_iter=3, tolerance_change=0.0
    )
    for _ in range(8):
        opt.step(lambda: problem.closure(opt))
        problem.number += 1
        opt.resampled()
    problem.assert_pairs_are_of_one_sample(opt)


def test_without_a_word_the_pair_that_waits_would_mix_them():
    problem = Sampled()
    opt = plain(problem.parameters(), line_search_fn=None, lr=0.2, max_iter=1)
    for _ in range(8):
        opt.step(lambda: problem.closure(opt))
        problem.number += 1
    with pytest.raises(AssertionError):
        problem.assert_pairs_are_of_one_sample(opt)


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("max_iter", [1, 4])
def test_nor_those_of_a_closure_with_a_seed(search, max_iter):
    problem = Sampled()
    opt = plain(
        problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.2, max_iter=max_iter, max_eval=20,
        tolerance_change=0.0,
    )  # fmt: skip

    def closure(seed):
        problem.number = seed
        return problem.closure(opt)

    for _ in range(8):
        opt.step(closure)
    if search is not None or max_iter > 1:
        problem.assert_pairs_are_of_one_sample(opt)
    else:
        assert opt.stats.stored == 0  # every gradient is of another sample


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("every", [5, 7])
def test_nor_those_told_by_the_closure_in_the_middle_of_a_search(search, every):
    problem = Sampled()
    opt = plain(
        problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.2, max_iter=20, max_eval=60,
        tolerance_change=0.0,
    )  # fmt: skip

    def closure():
        if problem.calls % every == every - 1:
            problem.number += 1
            opt.resampled()
        return problem.closure(opt)

    for _ in range(3):
        opt.step(closure)
    problem.assert_pairs_are_of_one_sample(opt)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_new_sample_at_every_call_is_hopeless_and_said(search):
    problem = Sampled()
    opt = plain(problem.parameters(), line_search_fn=search)
    before = flat(problem.parameters()).detach().clone()

    def closure():
        problem.number += 1
        opt.resampled()
        return problem.closure(opt)

    with pytest.raises(RuntimeError, match=r"called resampled\(\) in 3 searches in a row"):
        opt.step(closure)
    assert torch.equal(flat(problem.parameters()).detach(), before)


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_a_new_sample_whose_loss_is_not_finite_ends_the_step_and_keeps_the_pairs(search):
    problem = Sampled()
    opt = plain(problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.2, max_iter=3)
    opt.step(lambda: problem.closure(opt))
    before, pairs, calls = flat(problem.parameters()).detach().clone(), opt.stats.pairs, problem.calls

    def closure():
        loss = problem.closure(opt)
        if problem.calls == calls + 2:
            opt.resampled()
        return loss * torch.nan if problem.calls > calls + 1 else loss

    with pytest.warns(UserWarning, match="not finite, so the weights stay as they are"):
        opt.step(closure)
    assert torch.equal(flat(problem.parameters()).detach(), before)
    assert (opt.stats.nonfinite, opt.stats.restarts) == (1, 0)
    assert opt.stats.pairs >= pairs


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("make", [convex, network])
def test_a_deterministic_loss_has_no_noise(search, make):
    problem = make()
    opt = plain(problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.1, max_iter=3)
    problem.run(opt, 6)
    assert opt.stats.noise == 0.0
    assert "noise" not in [finding.name for finding in opt.explain().findings]


@pytest.mark.parametrize("search", SEARCHES)
def test_resampled_losses_have(search):
    problem = Sampled(spread=0.1)
    opt = plain(problem.parameters(), line_search_fn=search, max_iter=2, tolerance_change=0.0)
    for _ in range(6):
        opt.step(lambda: problem.closure(opt))
        problem.number += 1
        opt.resampled()
    assert opt.stats.noise > 0.0
    assert "losses at the same weights differ" in str(opt.explain())
    fixed = plain(problem.parameters(), line_search_fn=search, noise=0.5)
    fixed.step(lambda: problem.closure(fixed))
    assert fixed.stats.noise == 0.0
    assert "losses at the same weights differ" not in str(fixed.explain())


@pytest.mark.parametrize("search", SEARCHES)
def test_a_step_that_is_lost_in_noise_is_no_failure(search):
    """Near the minimum the loss has noise far above every decrease; a search that is told of it still steps."""
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.full((4,), 1e-4, dtype=torch.float64))

    def closure_of(opt):
        def closure():
            opt.zero_grad()
            loss = w.square().sum()
            loss.backward()
            return loss.detach() + 1e-5 * torch.rand((), dtype=torch.float64, generator=generator)

        return closure

    opt = plain([w], line_search_fn=search, noise=1e-4, max_iter=3, tolerance_change=0.0, tolerance_grad=1e-12)
    opt.step(closure_of(opt))
    assert opt.stats.restarts == 0
    assert float(w.detach().abs().max()) < 1e-4


@pytest.mark.parametrize("search", SEARCHES)
def test_training_on_resampled_data_arrives_near_the_mean(search):
    problem = Sampled(spread=0.05)
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search, max_iter=3, damping=0.2, scaling="adam")

    def closure(seed):
        problem.number = seed
        return problem.closure(opt)

    start = float(flat(problem.parameters()).detach().norm())
    for _ in range(15):
        opt.step(closure)
    assert float(flat(problem.parameters()).detach().norm()) < 0.5 * start


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("make", [adaqn.LBFGS, adaqn.BFGS])
def test_a_search_that_its_budget_ends_learns_from_the_trial_that_was_too_long(search, make):
    """One trial per sample, and a loss that has become steeper: the next call must not try the same length again."""
    problem = Sampled(spread=0.0)
    opt = make(
        problem.parameters(), line_search_fn=search, scaling="identity", max_iter=1, tolerance_change=0.0
    )  # fmt: skip
    steeper = 1.0

    def closure():
        opt.zero_grad()
        w = flat(problem.model.pieces)
        loss = 0.5 * steeper * (w @ problem.A @ w)
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    before = flat(problem.parameters()).detach().norm()
    for group in opt.param_groups:
        group["max_eval"] = 2
    steeper = 1e6
    for _ in range(40):
        opt.resampled()
        opt.step(closure)
    assert opt.stats.evaluations <= 80 + 3 * 6
    assert flat(problem.parameters()).detach().norm() < 0.5 * before


def test_what_it_learns_without_going_is_a_pair_of_one_sample():
    problem = Sampled(spread=5.0)
    opt = plain(problem.parameters(), max_iter=1, max_eval=2, tolerance_change=0.0, lr=1e4)
    opt.step(lambda: problem.closure(opt))
    assert opt.stats.reason.startswith("the budget")
    problem.assert_pairs_are_of_one_sample(opt)
