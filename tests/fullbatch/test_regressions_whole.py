"""What strangers found: each stood still, went wrong without a word, or said something untrue."""

import pytest
import torch
from torch import nn

from adaqn import BFGS, LBFGS

X = torch.linspace(-1, 1, 50)[:, None]
TARGET = torch.sin(6 * X) * torch.exp(X)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))


def closure_of(net, opt):
    def closure():
        opt.zero_grad()
        loss = (net(X) - TARGET).square().mean()
        loss.backward()
        return loss

    return closure


def loss_of(net):
    return float((net(X) - TARGET).square().mean().detach())


@pytest.mark.filterwarnings("ignore:the trainable parameters changed")
@pytest.mark.parametrize("scaling", ["kronecker_secant", "secant", "kronecker", "adam", "identity"])
def test_parameters_that_join_later_are_trained(scaling):
    """H0 from pairs knew nothing of them, and moved them by 1e8 times their gradient."""
    net = network()
    opt = LBFGS(net[4].parameters(), max_iter=10, scaling=scaling)
    opt.step(closure_of(net, opt))
    before = loss_of(net)
    opt.add_param_group({"params": list(net[:4].parameters())})
    for _ in range(8):
        opt.step(closure_of(net, opt))
    assert loss_of(net) < 0.5 * before


def test_a_search_that_a_budget_cuts_off_goes_on_in_the_next_step():
    """It tried the same length again for ever."""
    net = network()
    opt = LBFGS(net.parameters(), max_iter=1, max_eval=2, tolerance_change=0)
    before = loss_of(net)
    for _ in range(150):
        opt.step(closure_of(net, opt))
    assert loss_of(net) < 0.1 * before


def test_steps_that_do_not_move_are_told():
    w = nn.Parameter(torch.ones(3))
    opt = LBFGS([w], max_iter=2, max_eval=3, scaling="identity")

    def wrong_sign():
        w.grad = -2.0 * w.detach()
        return w.detach().square().sum()

    opt.step(wrong_sign)
    opt.step(wrong_sign)
    assert opt.stats.idle == 2
    assert "idle" in {finding.name for finding in opt.explain().findings}
    assert torch.equal(w.detach(), torch.ones(3))


@pytest.mark.parametrize("search", ["strong_wolfe", "hager_zhang", "backtracking"])
def test_an_exhausted_iterator_of_the_closure_is_the_users(search):
    """StopIteration was taken for the end of the search."""
    w, data = nn.Parameter(torch.tensor([3.0, -2.0])), iter([0.0] * 3)
    opt = LBFGS([w], line_search_fn=search)

    def closure():
        shift = next(data)
        opt.zero_grad()
        loss = ((w - 1) ** 4).sum() + shift
        loss.backward()
        return loss

    with pytest.raises(StopIteration):
        opt.step(closure)
    assert opt.stats.reason == "StopIteration was raised in it"
    assert w.isfinite().all()


@pytest.mark.parametrize("scaling", ["adam", "kronecker", "identity"])
def test_the_state_of_another_h0_is_refused(scaling):
    """Its averages were taken for those of this one, and what was left for a stranger's."""
    net = network()
    opt = LBFGS(net.parameters(), max_iter=3)
    opt.step(closure_of(net, opt))
    other = LBFGS(net.parameters(), scaling=scaling)
    with pytest.raises(ValueError, match="saved by another method or with other options"):
        other.load_state_dict(opt.state_dict())
    assert other.stats.iterations == 0


def test_a_default_of_the_closure_stays_its_own():
    w, seen = nn.Parameter(torch.ones(2)), []
    opt = LBFGS([w], max_iter=2)

    def closure(seed=1234):
        seen.append(seed)
        opt.zero_grad()
        loss = (w - 2).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert set(seen) == {1234}


def test_a_full_matrix_that_is_too_large_is_refused_when_the_optimizer_is_made():
    with pytest.raises(ValueError, match="10,001 weights"):
        BFGS([nn.Parameter(torch.zeros(10_001))])


def test_a_search_of_ones_own_that_returns_no_trial_is_told_and_the_weights_return():
    w = nn.Parameter(torch.ones(2))

    def search(line, start, first, *, budget, noise=0.0, resolution=0.0):
        line(first)

    opt = LBFGS([w], line_search_fn=search)

    def closure():
        opt.zero_grad()
        loss = (w - 2).square().sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match="the line search must return a Found"):
        opt.step(closure)
    assert torch.equal(w.detach(), torch.ones(2))


def test_an_error_in_the_first_call_is_the_reason():
    w = nn.Parameter(torch.ones(2))
    opt = LBFGS([w])

    def closure():
        raise KeyError("data")

    with pytest.raises(KeyError):
        opt.step(closure)
    assert opt.stats.reason == "KeyError was raised in it"
