"""Losses near rounding: values say nothing any more, slopes still do."""

import pytest
import torch
from torch import nn

from adaqn import LBFGS


def fitted(dtype: torch.dtype, evaluations: int, **options: object) -> LBFGS:
    """A small regression, in steps of the default budget."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).to(dtype)
    x = torch.linspace(-1, 1, 100, dtype=torch.float64)[:, None]
    target = (torch.sin(6 * x) * torch.exp(x)).to(dtype)
    x = x.to(dtype)
    opt = LBFGS(net.parameters(), max_iter=20, tolerance_change=0, tolerance_grad=0, **options)  # type: ignore[arg-type]

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = (net(x) - target).square().mean()
        loss.backward()
        return loss

    while opt.stats.evaluations < evaluations:
        opt.step(closure)
    return opt


def test_a_run_in_float32_does_not_stand_still_where_losses_are_rounding() -> None:
    """The residual is a difference of numbers a thousand times as large, so the loss has four good digits."""
    opt = fitted(torch.float32, 750)
    assert opt.stats.idle == 0
    assert opt.stats.iterations > 0.7 * opt.stats.evaluations  # searches do not spend the budget on last digits
    trusting = fitted(torch.float32, 750, noise=0.0)
    assert opt.stats.loss < trusting.stats.loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_never_raises_the_loss_by_more_than_rounding(dtype: torch.dtype) -> None:
    seen: list[float] = []
    fitted(dtype, 400, on_cycle=lambda it: seen.append(it.loss / it.previous_loss))
    assert max(seen) <= 1.001
