"""The loss and gradient of the whole batch: every evaluation counted, the lowest remembered, the budget kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[], tuple[Tensor, Tensor]]
"""→ (the loss, what the model returned)."""


class SpentError(Exception):
    """Raised in the place of an evaluation beyond the budget; it ends whatever the optimizer was in."""


class Evaluator:
    """What an optimizer is given as its closure.

    An optimizer's ``step`` begins where the one before ended, and evaluates that point again; the gradient is known
    already, so it is not counted twice. Slices of a long minimisation then cost what the whole does.

    Args:
        model: its weights are what is optimized.
        forward: the whole batch through the model.
        zero_grad: the optimizer's own.
        budget: evaluations in all.
        after: called after every evaluation that was counted.
    """

    def __init__(
        self, model: nn.Module, forward: Forward, zero_grad: Callable[[], None], budget: int, after: Callable[[], None]
    ) -> None:
        self.params = list(model.parameters())
        self.forward, self.zero_grad, self.budget, self.after = forward, zero_grad, budget, after
        self.count = 0
        self.last = math.nan
        self.lowest = math.inf
        self.weights: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self._begins = False

    def begin(self) -> None:
        """A step of a minimisation begins."""
        self._begins = True

    def closure(self) -> Tensor:
        """Loss and gradient, as ``step(closure)`` wants them."""
        begins, self._begins = self._begins, False
        if begins and self.is_known():
            for p, gradient in zip(self.params, self.gradients, strict=True):
                p.grad = gradient.clone()
            return self.params[0].new_tensor(self.lowest)
        self._check()
        self.zero_grad()
        with torch.enable_grad():
            loss, _ = self.forward()
            torch.autograd.backward(loss)
        self._note(loss.detach())
        return loss.detach()

    def forget(self) -> None:
        """What comes is of other data: no loss so far compares with it. The weights stay until the next loss."""
        self.lowest, self.gradients = math.inf, []

    def graph(self) -> tuple[Tensor, Tensor]:
        """Loss and outputs with their graph, without the gradient."""
        self._check()
        loss, outputs = self.forward()
        self._note(loss.detach(), with_gradient=False)
        return loss, outputs

    def charge(self, products: int) -> None:
        """Count work that was not asked for here, such as products with a curvature matrix."""
        self.count = min(self.budget, self.count + products)
        self.after()

    def _check(self) -> None:
        if self.count >= self.budget:
            raise SpentError

    def is_known(self) -> bool:
        """Are the weights those of the lowest loss? Then a step that begins here costs one evaluation less."""
        if not self.gradients:
            return False
        return all(torch.equal(p.detach(), known) for p, known in zip(self.params, self.weights, strict=True))

    @torch.no_grad()
    def _note(self, loss: Tensor, with_gradient: bool = True) -> None:
        self.count += 1
        self.last = float(loss)
        if self.last < self.lowest:
            self.lowest = self.last
            self.weights = [p.detach().clone() for p in self.params]
            # Of a closure with a graph they are not there yet.
            known = with_gradient and all(p.grad is not None for p in self.params)
            self.gradients = [p.grad.clone() for p in self.params if p.grad is not None] if known else []
        self.after()

    @torch.no_grad()
    def restore_lowest(self, model: nn.Module) -> None:
        """Give a model the weights of the lowest loss; none, if no loss was finite."""
        for p, weights in zip(model.parameters(), self.weights, strict=False):
            p.copy_(weights)

    # ------------------------------------------------------------------ saving

    def state(self) -> dict[str, Any]:
        kept = ("count", "last", "lowest", "weights", "gradients")
        return {name: getattr(self, name) for name in kept}

    def load(self, state: dict[str, Any]) -> None:
        """What :meth:`state` gave; a ``ValueError`` for anything else."""
        names = ("weights", "gradients")
        for name in names:
            shapes = [tensor.shape for tensor in state[name]]
            if shapes and shapes != [p.shape for p in self.params]:
                raise ValueError(f"its {name} have the shapes of another model")
        if not 0 <= state["count"] <= self.budget:
            raise ValueError(f"its evaluations are {state['count']}, and this run has {self.budget}")
        self.count, self.last, self.lowest = int(state["count"]), float(state["last"]), float(state["lowest"])
        self.weights, self.gradients = (
            [tensor.to(p) for tensor, p in zip(state[name], self.params, strict=False)] for name in names
        )
