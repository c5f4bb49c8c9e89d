"""What a closure must do, and how it is seen whether it did."""

import pytest
import torch
from torch import nn

from adaqn import LBFGS


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gradient_made_anew_may_lie_where_the_old_one_lay(set_to_none):
    w = nn.Parameter(torch.linspace(-1.0, 2.0, 5, dtype=torch.float64))
    opt = LBFGS([w], scaling="adam", max_iter=5, tolerance_change=0.0)

    def closure():
        opt.zero_grad(set_to_none=set_to_none)
        loss = (w**4).sum() + w.sum() ** 2
        loss.backward()
        return loss

    for _ in range(20):
        opt.step(closure)
    assert opt.stats.loss < 1e-6
    with pytest.warns(UserWarning, match="the closure made no gradient"):
        opt.step(lambda: (w**4).sum().detach())


def writes_data(w, gradient, calls):
    w.grad.data.copy_(gradient)


def writes_numpy(w, gradient, calls):
    w.grad.numpy()[:] = gradient.numpy()


def sets_data(w, gradient, calls):
    w.grad.data = gradient


def writes_data_later(w, gradient, calls):
    if calls == 1:
        w.grad = gradient
    else:
        w.grad.data.copy_(gradient)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("search", ["hager_zhang", None])
@pytest.mark.parametrize("write", [writes_data, writes_numpy, sets_data, writes_data_later])
def test_gradients_may_be_written_where_torch_does_not_count_it(write, search, maximize):
    """Neither the tensor nor its version changes; the next step begins with the values that the last one ended with."""
    w = nn.Parameter(torch.linspace(-1.0, 2.0, 5, dtype=torch.float64))
    w.grad = torch.zeros_like(w)
    sign, calls = -1.0 if maximize else 1.0, 0
    opt = LBFGS([w], line_search_fn=search, max_iter=3, maximize=maximize, tolerance_change=0.0, scaling="identity")

    def closure():
        nonlocal calls
        calls += 1
        with torch.no_grad():
            gradient = sign * (2.0 * w + w.sum()).clone()
            write(w, gradient, calls)
            return sign * (w.square().sum() + 0.5 * w.sum() ** 2)

    for _ in range(6):
        opt.step(closure)
    assert float(w.detach().square().sum()) < 1e-6


def test_gradients_of_the_same_values_are_old_ones():
    w = nn.Parameter(torch.ones(3))
    w.grad = torch.tensor([1.0, float("nan"), 2.0])
    opt = LBFGS([w])
    with pytest.warns(UserWarning, match=r"made no gradient.*through .data"):
        opt.step(lambda: 1.0)
    assert bool((w == 1.0).all())
