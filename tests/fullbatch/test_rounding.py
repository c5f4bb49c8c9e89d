"""Losses near rounding: values say nothing any more, slopes still do."""

import pytest
import torch
from torch import nn

from adaqn import LBFGS, HagerZhang


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


class Listening:
    """Hager and Zhang's search, that notes what it is told about noise."""

    def __init__(self) -> None:
        self.told: list[tuple[float, float]] = []

    def __call__(self, line, start, first, *, budget, noise=0.0, resolution=0.0):  # type: ignore[no-untyped-def]
        self.told.append((start.value, noise))
        return HagerZhang()(line, start, first, budget=budget, noise=noise, resolution=resolution)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_searches_know_how_far_rounding_reaches(dtype: torch.dtype) -> None:
    """A residual is a difference of numbers of the size of the first one, and is rounded as those are."""
    search = Listening()
    fitted(dtype, 300, line_search_fn=search)
    first, eps = search.told[0][0], torch.finfo(dtype).eps
    for value, noise in search.told:
        assert noise == pytest.approx(min(eps * (value * first) ** 0.5, 1e-3 * value), rel=1e-6)
    value, noise = search.told[-1]
    assert noise > 20 * eps * value


def test_a_noise_that_is_given_is_taken_as_it_is() -> None:
    search = Listening()
    fitted(torch.float32, 100, line_search_fn=search, noise=0.0)
    assert {noise for _, noise in search.told} == {0.0}


def test_a_run_in_float32_does_not_stand_still_where_losses_are_rounding() -> None:
    opt = fitted(torch.float32, 750)
    assert opt.stats.idle == 0
    assert opt.stats.iterations > 0.6 * opt.stats.evaluations  # searches do not spend the budget on last digits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_never_raises_the_loss_by_more_than_rounding(dtype: torch.dtype) -> None:
    seen: list[float] = []
    fitted(dtype, 400, on_cycle=lambda it: seen.append(it.loss / it.previous_loss))
    assert max(seen) <= 1.001
