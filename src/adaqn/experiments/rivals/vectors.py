"""Minimisers of a vector: scipy's and pytorch-minimize's, on all weights laid end to end.

One call is the whole minimisation. It ends when its closure raises, or by a test of its own; called again it begins
anew from the weights it found, and without what it knew.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from adaqn.experiments.errors import UserError

Closure = Callable[[], Tensor]
ENDLESS = 10**9
"""Iterations: nothing but the budget is to end a minimisation."""
SCIPY: dict[str, dict[str, Any]] = {
    "L-BFGS-B": {"maxcor": 50, "maxiter": ENDLESS, "maxfun": ENDLESS, "maxls": 50, "ftol": 0.0, "gtol": 0.0},
    "BFGS": {"maxiter": ENDLESS, "gtol": 0.0},
}

_NEVER = {"gtol": 0.0, "xtol": 0.0, "gtd_tol": 0.0}
TORCHMIN: dict[str, dict[str, Any]] = {"l-bfgs": {**_NEVER, "history_size": 50}, "bfgs": _NEVER}


class VectorMinimizer(Optimizer):
    """Weights as one vector; subclasses minimise it.

    Args:
        params: of the model.
        method: of the package.
        lr: 1, the first trial of a line search; no other is taken.
        options: of the method, in the place of the usual ones.
    """

    package, pip = "", ""

    def __init__(self, params: Any, *, method: str, lr: float = 1.0, **options: Any) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise UserError(f"{method} comes from the package {self.pip}: pip install {self.pip}")
        if lr != 1.0:
            raise ValueError(f"lr must be 1, got {lr}: {method} of {self.package} searches along lines")
        super().__init__(params, {"lr": lr})
        self.method, self.options = method, options
        self.params: list[Tensor] = self.param_groups[0]["params"]

    def step(self, closure: Closure) -> Tensor:  # type: ignore[override]
        with torch.no_grad():
            found = self.minimise(closure)
            vector_to_parameters(found.to(self.params[0]), self.params)
        return found

    def minimise(self, closure: Closure) -> Tensor:
        raise NotImplementedError

    def gradient(self) -> Tensor:
        return torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in self.params])


class Scipy(VectorMinimizer):
    """``scipy.optimize.minimize``; its vectors are float64, whatever the weights are."""

    package, pip = "scipy", "scipy"

    def minimise(self, closure: Closure) -> Tensor:
        from scipy.optimize import minimize

        def value(vector: Any) -> tuple[float, Any]:
            vector_to_parameters(torch.from_numpy(vector).to(self.params[0]), self.params)
            loss = float(closure())
            return loss, self.gradient().double().numpy(force=True)

        start = parameters_to_vector(self.params).double().numpy(force=True)
        options = {**SCIPY[self.method], **self.options}
        found = minimize(value, start, jac=True, method=self.method, options=options)
        return torch.from_numpy(found.x)


class TorchMin(VectorMinimizer):
    """``torchmin.Minimizer`` of pytorch-minimize."""

    package, pip = "torchmin", "pytorch-minimize"

    def minimise(self, closure: Closure) -> Tensor:
        from torchmin import Minimizer

        # It calls backward on the loss itself. Ours has been called already: this one reaches no weight.
        def value() -> Tensor:
            return closure().detach().requires_grad_()

        options = {**TORCHMIN[self.method], **self.options}
        inner = Minimizer(self.params, method=self.method, max_iter=ENDLESS, options=options)
        inner.step(value)
        return parameters_to_vector(self.params)
