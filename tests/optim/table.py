"""The table of optimizers: every row goes through the whole contract suite."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from adaqn import (
    OLBFGS,
    RES,
    SQN,
    AccumulatedFisher,
    AdaQN,
    HessianProduct,
    Kronecker,
    PairOptions,
    RejectOptions,
    SdLBFGS,
    StorageOptions,
)


@dataclass(frozen=True)
class OptimizerInfo:
    name: str
    make: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)
    monitored: bool = True

    def __call__(self, params: Any, **overrides: Any) -> Any:
        return self.make(params, **{**self.options, **overrides})


class Held(torch.nn.Module):
    """A model of which nothing is known but its parameters; its loss is half their square."""

    def __init__(self, params: Any) -> None:
        super().__init__()
        self.held = torch.nn.ParameterList(params)

    def forward(self, unused: torch.Tensor) -> torch.Tensor:
        reals = (torch.view_as_real(p) if p.is_complex() else p for p in self.held)
        return 0.5 * sum(p.square().sum() for p in reals)


def first(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output


def minus_first(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -output


def make_sqn(params: Any, **options: Any) -> SQN:
    params, loss = list(params), minus_first if options.get("maximize") else first
    return SQN(params, curvature=HessianProduct(Held(params), loss, [(torch.zeros(1), torch.zeros(1))]), **options)


class FixedLosses:
    """Per-example losses of a model that never changes."""

    def __call__(self) -> torch.Tensor:
        return torch.tensor([1.0, 2.0, 4.0])


PAIRS = PairOptions(memory_size=4, fisher_size=6)
BASE = {"preset": "paper", "lr": 0.05, "cycle_length": 3, "pairs": PAIRS, "reject": "none"}
SLOW = {**BASE, "lr": 0.01}
BF16 = StorageOptions(history_dtype=torch.bfloat16, fisher_dtype=torch.bfloat16)
FISHER_ON_CPU = {
    "pairs": replace(PAIRS, curvature=AccumulatedFisher(6, batch_size=4)),
    "storage": StorageOptions(fisher_device="cpu"),
}
SOME_PAIRS = {"pairs": PairOptions(memory_size=3), "warm_up": 0}
PAIRED = {"reject": RejectOptions(test="paired", window=3), "monitor": FixedLosses()}

OPTIMIZERS = [
    OptimizerInfo("adaqn", AdaQN, BASE),
    OptimizerInfo("adaqn-monitored", AdaQN, {**BASE, "reject": "factor", "monitor": lambda: 1.0}),
    OptimizerInfo("adaqn-scale-free", AdaQN, {**BASE, "pairs": replace(PAIRS, test="scale_free")}),
    OptimizerInfo("adaqn-two-loop", AdaQN, {**BASE, "pairs": replace(PAIRS, direction="two_loop")}),
    OptimizerInfo("adaqn-identity", AdaQN, {**BASE, "scaling": "identity"}),
    OptimizerInfo("adaqn-bb", AdaQN, {**SLOW, "scaling": "barzilai_borwein"}),
    OptimizerInfo("adaqn-rmsprop", AdaQN, {**SLOW, "scaling": "rmsprop"}),
    OptimizerInfo("adaqn-adam", AdaQN, {**SLOW, "scaling": "adam"}),
    OptimizerInfo("adaqn-kronecker", AdaQN, {**SLOW, "scaling": Kronecker(refresh=4, block_size=100)}),
    OptimizerInfo("adaqn-bf16", AdaQN, {**BASE, "storage": BF16}),
    OptimizerInfo("adaqn-master", AdaQN, {**BASE, "storage": StorageOptions(master_weights=True)}),
    OptimizerInfo("adaqn-fisher-on-cpu", AdaQN, {**BASE, **FISHER_ON_CPU}),
    OptimizerInfo("adaqn-decay", AdaQN, {**BASE, "weight_decay": 0.1}),
    OptimizerInfo("adaqn-momentum", AdaQN, {**SLOW, "scaling": "adam", "momentum": 0.9}),
    OptimizerInfo("adaqn-nesterov", AdaQN, {**SLOW, "scaling": "adam", "momentum": 0.9, "nesterov": True}),
    OptimizerInfo("adaqn-default", AdaQN, {"lr": 0.02, "monitor": FixedLosses()}),
    OptimizerInfo("adaqn-auto", AdaQN, {**BASE, "cycle_length": "auto"}),
    OptimizerInfo("adaqn-paired", AdaQN, {**BASE, **PAIRED}),
    OptimizerInfo("adaqn-modern", AdaQN, {"preset": "modern", "lr": 0.02, "monitor": FixedLosses(), **SOME_PAIRS}),
    OptimizerInfo("adaqn-default-pairs", AdaQN, {"lr": 0.02, "monitor": FixedLosses(), **SOME_PAIRS}),
    OptimizerInfo("olbfgs", OLBFGS, {"lr": 0.1, "memory_size": 4, "regularisation": 0.1}, monitored=False),
    OptimizerInfo("res", RES, {"lr": 0.1, "memory_size": 4, "delta": 0.1}, monitored=False),
    OptimizerInfo("sdlbfgs", SdLBFGS, {"lr": 0.1, "memory_size": 4, "decay_steps": 500.0}, monitored=False),
    OptimizerInfo("sqn", make_sqn, {"lr": 0.05, "memory_size": 4, "cycle_length": 3}, monitored=False),
]
