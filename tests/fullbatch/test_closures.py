"""Bad closures: one clear error or a clean stop each, and the weights as they were."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import adaqn
from fullbatch.problems import EVERY_SEARCH, SEARCHES, convex, network, plain, rosenbrock, valley

NO_GRADIENT = "the closure made no gradient"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, r"returned nothing \(None\)"),
        ("0.5", "returned str"),
        (True, "returned bool"),
        (torch.ones(2), r"returned a tensor of shape \(2,\) and torch.float32"),
        (torch.ones(()) * 1j, r"returned a tensor of shape \(\) and torch.complex64"),
        ([torch.ones(())], "returned list"),
        (np.ones(1), "returned ndarray"),
        (np.array(1j), "returned ndarray"),
    ],
    ids=str,
)
def test_what_is_no_loss_is_refused_and_the_weights_stay(returned, words):
    problem = convex()
    opt = adaqn.LBFGS(problem.parameters())
    before = problem.vector()

    def closure():
        problem.closure(opt)()
        return returned

    with pytest.raises(TypeError, match=words):
        opt.step(closure)
    assert torch.equal(problem.vector(), before)
    problem.run(opt, 1)
    assert opt.stats.stored > 0


@pytest.mark.parametrize(
    "returned",
    [3, 3.5, torch.tensor([[3.0]]), torch.tensor(3, dtype=torch.int64), np.array(3.0), np.float32(3.0), np.int64(3)],
    ids=repr,
)
def test_numbers_and_tensors_of_one_element_are_losses(returned):
    w = nn.Parameter(torch.zeros(3))

    def closure():
        w.grad = torch.zeros(3)
        return returned

    assert adaqn.LBFGS([w]).step(closure) is returned


@pytest.mark.parametrize("closure", [3, "loss", torch.ones(())], ids=str)
def test_what_cannot_be_called_is_no_closure(closure):
    with pytest.raises(TypeError, match="step\\(\\) needs a closure"):
        adaqn.LBFGS(convex().parameters()).step(closure)


def test_a_step_without_closure_says_how():
    with pytest.raises(TypeError, match=r"opt.step\(closure\), where the closure clears the gradients"):
        adaqn.LBFGS(convex().parameters()).step()


# ---------------------------------------------------------------------- no backward


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_a_closure_that_never_calls_backward_is_refused(search):
    problem = convex()
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search)
    before = problem.vector()
    with pytest.raises(RuntimeError, match=NO_GRADIENT):
        opt.step(problem.loss)
    assert torch.equal(problem.vector(), before)
    assert opt.stats.iterations == 0


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_gradients_that_the_closure_leaves_as_they_were_end_the_step(search):
    problem = convex()
    problem.loss().backward()
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search)
    before = problem.vector()
    with pytest.warns(UserWarning, match=NO_GRADIENT):
        assert torch.is_tensor(opt.step(problem.loss))
    assert torch.equal(problem.vector(), before)
    assert NO_GRADIENT in opt.stats.reason
    assert (opt.stats.iterations, opt.stats.nonfinite, opt.stats.evaluations) == (0, 0, 1)
    opt.step(problem.closure(opt))  # and with backward it works
    assert opt.stats.stored > 0


@pytest.mark.parametrize("search", SEARCHES)
def test_backward_that_is_left_out_in_the_middle_of_a_search_is_refused(search):
    problem = convex()
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search)
    before = problem.vector()

    def closure():
        return problem.closure(opt)() if problem.calls == 0 else problem.loss()

    with pytest.raises(RuntimeError, match=NO_GRADIENT):
        opt.step(closure)
    assert torch.equal(problem.vector(), before)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gradient_at_the_address_of_the_last_one_is_a_new_gradient(set_to_none):
    """Freed memory is given out again at once: many calls, none refused."""
    w = nn.Parameter(torch.full((50,), 2.0))
    opt = adaqn.LBFGS([w], max_iter=300, tolerance_change=0.0, tolerance_grad=0.0)

    def closure():
        opt.zero_grad(set_to_none=set_to_none)
        loss = (w**4).sum()
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    assert opt.stats.evaluations > 50


def test_parameters_that_are_not_in_the_loss_have_no_gradient_and_stay():
    problem, unused = convex(), nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = adaqn.LBFGS([*problem.parameters(), unused])
    problem.run(opt, 2)
    assert torch.equal(unused.detach(), torch.ones(3))
    assert opt.stats.stored > 0


def test_nothing_to_train_is_said():
    w = nn.Parameter(torch.ones(3), requires_grad=False)
    opt = adaqn.LBFGS([w])
    with pytest.warns(UserWarning, match="no parameter requires a gradient"):
        assert opt.step(lambda: 2.0) == 2.0
    assert "no parameter requires a gradient" in opt.stats.reason
    assert torch.equal(w.detach(), torch.ones(3))


# ---------------------------------------------------------------------- errors within


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2, 4, 9])
def test_an_error_in_the_closure_leaves_the_weights_where_the_line_began(search, error, call):
    problem = valley()
    points = [problem.vector()]
    opt = plain(
        problem.parameters(), line_search_fn=search, lr=1.0 if search else 0.05, tolerance_change=0.0,
        on_cycle=lambda event: points.append(problem.vector()),
    )  # fmt: skip

    def closure():
        if problem.calls + 1 == call:
            raise error("by the user")
        return problem.closure(opt)()

    with pytest.raises(error, match="by the user"):
        opt.step(closure)
    assert torch.equal(problem.vector(), points[-1])
    before = problem.loss().item()
    problem.calls = 100
    opt.step(closure)
    assert opt.stats.noise == 0.0
    assert problem.loss().item() < before


@pytest.mark.parametrize("what", ["step", "state_dict", "load_state_dict"])
def test_what_must_not_be_called_within_a_closure_is_refused_in_words(what):
    problem = convex()
    opt = adaqn.LBFGS(problem.parameters())
    saved = opt.state_dict()

    def closure():
        loss = problem.closure(opt)()
        if problem.calls == 3:
            opt.step(closure) if what == "step" else getattr(opt, what)(*([saved] if what[0] == "l" else []))
        return loss

    with pytest.raises(RuntimeError, match=rf"{what}\(\) was called inside the closure"):
        opt.step(closure)
    opt.step(problem.closure(opt))
    assert opt.state_dict()["state"]
    assert opt.stats.stored > 0


# ---------------------------------------------------------------------- closures with a seed


def test_a_closure_with_a_seed_gets_one_number_a_step():
    problem, seeds = network(), []
    opt = adaqn.LBFGS(problem.parameters(), max_iter=4)

    def closure(seed):
        seeds.append(seed)
        return problem.closure(opt)()

    for _ in range(3):
        opt.step(closure)
    counts = [seeds.count(k) for k in range(3)]
    assert sum(counts) == len(seeds)
    assert sorted(seeds) == seeds
    assert min(counts) > 1


def test_a_seed_that_was_given_already_is_left_alone():
    problem, seeds = network(), []
    opt = adaqn.LBFGS(problem.parameters(), max_iter=4)

    def closure(seed):
        seeds.append(seed)
        return problem.closure(opt)()

    opt.step(functools.partial(closure, seed=7))
    assert set(seeds) == {7}


# ---------------------------------------------------------------------- the budget


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_the_budget_is_never_exceeded_and_spent_where_nothing_else_ends_the_step(search):
    for budget in range(1, 41):
        problem = rosenbrock()
        opt = adaqn.LBFGS(
            problem.parameters(), lr=1.0 if search else 0.02, max_iter=100, max_eval=budget, line_search_fn=search,
            tolerance_change=0.0, tolerance_grad=0.0, scaling="adam" if budget % 2 else "identity",
        )  # fmt: skip
        before, calls = problem.loss().item(), 0
        for _ in range(2 if budget < 10 else 1):
            opt.step(problem.closure(opt))
            assert problem.calls - calls <= budget
            if "max_eval" in opt.stats.reason:
                assert problem.calls - calls == budget
            calls = problem.calls
        assert opt.stats.evaluations == problem.calls
        if search is not None:
            assert problem.loss().item() <= before
