"""The table of optimizers: every row goes through the whole contract suite."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from adaqn import AdaQN


@dataclass(frozen=True)
class OptimizerInfo:
    name: str
    make: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, params: Any, **overrides: Any) -> Any:
        return self.make(params, **{**self.options, **overrides})


BASE = {"lr": 0.05, "cycle_length": 3, "memory_size": 4, "fisher_size": 6, "acceptance": "none"}

OPTIMIZERS = [
    OptimizerInfo("adaqn", AdaQN, BASE),
    OptimizerInfo("adaqn-monitored", AdaQN, {**BASE, "acceptance": "factor", "monitor": lambda: 1.0}),
    OptimizerInfo("adaqn-scale-free", AdaQN, {**BASE, "curvature_test": "scale_free"}),
    OptimizerInfo("adaqn-two-loop", AdaQN, {**BASE, "direction": "two_loop"}),
    OptimizerInfo("adaqn-identity", AdaQN, {**BASE, "scaling": "identity"}),
    OptimizerInfo("adaqn-bb", AdaQN, {**BASE, "scaling": "barzilai_borwein", "lr": 0.01}),
    OptimizerInfo("adaqn-rmsprop", AdaQN, {**BASE, "scaling": "rmsprop", "lr": 0.01}),
    OptimizerInfo("adaqn-adam", AdaQN, {**BASE, "scaling": "adam", "lr": 0.01}),
    OptimizerInfo("adaqn-bf16", AdaQN, {**BASE, "history_dtype": torch.bfloat16, "fisher_dtype": torch.bfloat16}),
    OptimizerInfo("adaqn-master", AdaQN, {**BASE, "master_weights": True}),
    OptimizerInfo("adaqn-fisher-on-cpu", AdaQN, {**BASE, "fisher_device": "cpu", "fisher_batch_size": 4}),
    OptimizerInfo("adaqn-decay", AdaQN, {**BASE, "weight_decay": 0.1}),
]
