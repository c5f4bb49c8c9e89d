"""Adam first, L-BFGS after it: the usual recipe for physics-informed networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SLICE = {"max_iter": 20, "max_eval": 100, "tolerance_grad": 0.0, "tolerance_change": 0.0, "history_size": 50}
"""Of a minimisation: short enough to save between two of them. Nothing but the budget ends it."""
TORCH_LBFGS = {**SLICE, "line_search_fn": "strong_wolfe"}


class AdamThenLBFGS(Optimizer):
    """So many steps of Adam, one evaluation each, then torch's L-BFGS with its strong Wolfe search.

    Args:
        params: of the model.
        lr: of Adam; L-BFGS takes 1.
        adam_steps: before L-BFGS begins.
        history_size: of L-BFGS.
    """

    def __init__(self, params: Any, *, lr: float = 1e-3, adam_steps: int, history_size: int = 50) -> None:
        if adam_steps < 0:
            raise ValueError(f"adam_steps must be at least 0, got {adam_steps}")
        params = list(params)
        super().__init__(params, {"lr": lr})
        self.adam_steps, self.taken = adam_steps, 0
        self.adam = torch.optim.Adam(params, lr=lr)
        self.lbfgs = torch.optim.LBFGS(params, **{**TORCH_LBFGS, "history_size": history_size})  # type: ignore[arg-type]

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        if self.taken >= self.adam_steps:
            first: Tensor = self.lbfgs.step(closure)  # type: ignore[no-untyped-call]
            return first
        loss = closure()
        self.adam.step()
        self.taken += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "adam": self.adam.state_dict(), "lbfgs": self.lbfgs.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken = state_dict["taken"]
        self.adam.load_state_dict(state_dict["adam"])
        self.lbfgs.load_state_dict(state_dict["lbfgs"])
