"""y as the change of the gradient on one batch: what oLBFGS, RES and SdLBFGS learn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaqn.core.products import Reduce, local
from adaqn.optim.model_curvature import ModelCurvature


class GradientDifference(ModelCurvature):
    """y = ∇f_B(w_new) − ∇f_B(w_old): the closure is run a second time, after the step, on the same batch.

    Torch's random state is put back for the second run, so that dropout draws the same mask. Afterwards ``.grad``
    holds the gradient at the new point.
    """

    rows = 1

    def bind(self, closure: Callable[[], Any] | None, method: str, *, maximize: bool) -> None:
        """The closure of this step, before it is run for the first time."""
        if closure is None:
            raise RuntimeError(
                f"{method} compares two gradients of the same batch and so needs a closure that it can run twice: "
                "opt.step(closure), where the closure calls zero_grad() and backward() and returns the loss"
            )
        self.closure, self.maximize = closure, maximize
        self.random_state = torch.get_rng_state()

    def build(self, data: Tensor, reduce: Reduce = local) -> None:
        self.before = data[0]

    def observe(self, g: Tensor) -> None:
        self.before.copy_(g)

    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        after_first = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            with torch.enable_grad():
                self.closure()
        finally:
            torch.set_rng_state(after_first)
        self.flat.gather_gradients(self.flat.views(out))
        if self.maximize:
            out.neg_()
        return out.sub_(self.before)

    def __getstate__(self) -> dict[str, Any]:
        # A closure belongs to the step that it was given to.
        return {k: v for k, v in self.__dict__.items() if k not in ("closure", "random_state")}
