"""Every method of the library, one row each, on one small network: what drives the tests in test_methods.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaqn import BFGS, LBFGS, OLBFGS, RES, SQN, AdaQN, HessianProduct, Monitor, SdLBFGS
from adaqn.baselines import KFAC, SFO, HessianFree
from adaqn.experiments.training.stepping import take_step

BATCHES = 5
loss_fn = nn.MSELoss()
Batch = tuple[Tensor, Tensor]


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES, 16, 3, dtype=torch.float64, generator=generator)
    return [(inputs, torch.sin(inputs.sum(1, keepdim=True))) for inputs in x]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()


@dataclass(frozen=True)
class Method:
    name: str
    make: Callable[[nn.Module], Any]
    step: str = "plain"
    """As in the laboratory's table: plain, closure, outputs, indexed."""

    def advance(self, opt: Any, model: nn.Module, k: int, *, spoilt: bool = False) -> None:
        """One step on batch k; a spoilt one has a NaN in it."""
        index = opt.next_index() if self.step == "indexed" else k % BATCHES
        x, target = batches()[index]
        if spoilt:
            x = x.clone()
            x[0, 0] = torch.nan

        def forward() -> tuple[Tensor, Tensor]:
            output = model(x)
            return loss_fn(output, target), output

        take_step(opt, self.step, forward, index)


METHODS = [
    Method("adaqn", lambda m: AdaQN(m.parameters(), lr=0.02, monitor=Monitor(m, loss_fn, batches()[0]))),
    Method("lbfgs", lambda m: LBFGS(m.parameters(), max_iter=3), "closure"),
    Method("bfgs", lambda m: BFGS(m.parameters(), max_iter=3), "closure"),
    Method("olbfgs", lambda m: OLBFGS(m.parameters(), lr=0.3, regularisation=0.1), "closure"),
    Method("res", lambda m: RES(m.parameters(), lr=0.3, delta=0.1), "closure"),
    Method("sdlbfgs", lambda m: SdLBFGS(m.parameters(), lr=0.1), "closure"),
    Method("sqn", lambda m: SQN(m.parameters(), 0.1, curvature=HessianProduct(m, loss_fn, batches()), cycle_length=4)),
    Method("sfo", lambda m: SFO(m.parameters(), batches=BATCHES), "indexed"),
    Method("hessian-free", lambda m: HessianFree(m.parameters()), "outputs"),
    Method("kfac", lambda m: KFAC(m, lr=0.1, kl_clip=1e-2)),
]


def total_loss(model: nn.Module) -> float:
    with torch.no_grad():
        return sum(float(loss_fn(model(x), target)) for x, target in batches()) / BATCHES
