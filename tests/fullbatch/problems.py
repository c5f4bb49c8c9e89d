"""Small smooth problems in float64, and closures that count their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import adaqn
from oracles import Vector, random_spd

SEARCHES = ("strong_wolfe", "hager_zhang", "backtracking")
EVERY_SEARCH = (*SEARCHES, None)


class Problem:
    """A model and its loss: ``closure(opt)`` makes what ``step`` needs."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor]) -> None:
        self.model, self.loss = model, loss
        self.calls = 0

    def parameters(self) -> list[Tensor]:
        return list(self.model.parameters())

    def vector(self) -> Tensor:
        reals = (torch.view_as_real(p) if p.is_complex() else p for p in self.model.parameters())
        return torch.cat([p.detach().double().reshape(-1) for p in reals])

    @torch.enable_grad()
    def gradient(self) -> Tensor:
        """Where the weights are; what lies in ``.grad`` stays."""
        return flat(torch.autograd.grad(self.loss(), self.parameters()))

    def closure(self, opt: Any) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            self.calls += 1
            opt.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        return closure

    def run(self, opt: Any, steps: int) -> Tensor:
        """The weights after each step."""
        path = []
        for _ in range(steps):
            opt.step(self.closure(opt))
            path.append(self.vector())
        return torch.stack(path)


def flat(pieces: Any) -> Tensor:
    return torch.cat([p.reshape(-1) for p in pieces])


def convex(n: int = 12, seed: int = 0, dtype: torch.dtype = torch.float64) -> Problem:
    """½wᵀAw − bᵀw: one minimum."""
    generator = torch.Generator().manual_seed(seed)
    A, b = random_spd(n, generator).to(dtype), torch.randn(n, dtype=torch.float64, generator=generator).to(dtype)
    model = Vector(torch.randn(n, dtype=torch.float64, generator=generator)).to(dtype)

    def loss() -> Tensor:
        w = flat(model.pieces)
        return 0.5 * w @ A @ w - b @ w

    return Problem(model, loss)


def valley(n: int = 12, seed: int = 0, dtype: torch.dtype = torch.float64) -> Problem:
    """Curved, and not quite convex."""
    generator = torch.Generator().manual_seed(seed)
    A = random_spd(n, generator).to(dtype)
    model = Vector(2.0 * torch.randn(n, dtype=torch.float64, generator=generator)).to(dtype)

    def loss() -> Tensor:
        w = flat(model.pieces)
        return 0.5 * w @ A @ w + 0.1 * torch.sin(3.0 * w).sum() + (0.1 * w**4).sum()

    return Problem(model, loss)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> Problem:
    """A regression with one hidden layer."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(30, 3, dtype=torch.float64, generator=generator).to(dtype)
    target = torch.sin(x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=generator))
    model.to(dtype)
    return Problem(model, lambda: (model(x) - target).square().mean())


def rosenbrock(dtype: torch.dtype = torch.float64) -> Problem:
    model = nn.ParameterList([nn.Parameter(torch.tensor([-1.2, 1.0], dtype=dtype))])

    def loss() -> Tensor:
        x, y = model[0]
        return (1 - x) ** 2 + 100 * (y - x**2) ** 2

    return Problem(model, loss)


PROBLEMS = {"convex": convex, "valley": valley, "network": network}


def plain(params: Any, **options: Any) -> adaqn.LBFGS:
    """As torch's L-BFGS: H0 = γI."""
    return adaqn.LBFGS(params, **{"scaling": "identity", **options})
