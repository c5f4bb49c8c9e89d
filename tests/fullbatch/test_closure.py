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
