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

    def bind(self, closure: Callable[[], Any] | None, method: str, device: torch.device, *, maximize: bool) -> None:
        """The closure of this step, before it is run for the first time."""
        if closure is None:
            raise RuntimeError(
                f"{method} compares two gradients of the same batch and so needs a closure that it can run twice: "
                "opt.step(closure), where the closure calls zero_grad() and backward() and returns the loss"
            )
        self.closure, self.maximize, self.device = closure, maximize, device
        self.random_state = random_state(device)

    def build(self, data: Tensor, reduce: Reduce = local) -> None:
        self.before = data[0]

    def observe(self, g: Tensor) -> None:
        self.before.copy_(g)

    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        after_first = random_state(self.device)
        set_random_state(self.random_state, self.device)
        try:
            with torch.enable_grad():
                self.closure()
        finally:
            set_random_state(after_first, self.device)
            del self.closure  # and the batch that it holds
        self.flat.gather_gradients(self.flat.views(out))
        if self.maximize:
            out.neg_()
        return out.sub_(self.before)

    def __getstate__(self) -> dict[str, Any]:
        # A closure belongs to the step that it was given to.
        return {k: v for k, v in self.__dict__.items() if k not in ("closure", "random_state")}


def random_state(device: torch.device) -> list[Tensor]:
    """Of the CPU, and of the device that the closure computes on."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.get_device_module(device).set_rng_state(states[1], device)
