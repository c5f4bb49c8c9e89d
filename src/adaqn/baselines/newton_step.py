"""One damped Newton step: the linear system, and the search along its solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaqn.baselines.conjugate_gradients import Solution, Stop
from adaqn.baselines.gauss_newton import GaussNewton
from adaqn.baselines.step_control import armijo, best_iterate, reduction_ratio
from adaqn.core.jacobian import gradients
from adaqn.parameters.flat import FlatParameters


class Weights:
    """The parameters and the vector they make.

    The vector is read and written through aliases of the parameters: trial steps come and go without touching the
    version of the weights that a retained graph has saved, and are undone before that graph is used again.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = list(params)
        self.flat = FlatParameters([p.data for p in params])
        self.w = self.flat.gather(self.flat.new())
        self._backup = self.flat.new()

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors shaped like the parameters as one vector."""
        return torch.cat([t.detach().reshape(-1).to(self.flat.dtype) for t in tensors])

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """A vector as tensors with the shapes and dtypes of the parameters."""
        return [v.to(p.dtype) for v, p in zip(self.flat.views(vector), self.params, strict=True)]

    def loss_after(self, step: Tensor, loss: Callable[[], float]) -> float:
        """The loss at w + step; the parameters come back whatever happens."""
        with self.flat.swapped(self.w + step, self._backup):
            return loss()

    def move(self, step: Tensor) -> None:
        """The parameters themselves ← w + step: older graphs may no longer be used, and autograd will say so."""
        torch._foreach_copy_(self.params, self.flat.views(self.w + step))


@dataclass(frozen=True)
class Taken:
    """What the search made of a solution."""

    rate: float
    """0 if no rate lowered the loss."""
    rho: float | None
    """The reduction ratio; none if there was no direction to judge, as at a gradient of zero."""
    evaluations: int


def loss_gradient(loss: Tensor, params: Sequence[Tensor], *, keep: bool) -> list[Tensor]:
    """The gradient of a closure's loss, with errors that name the closure's mistakes."""
    if not loss.requires_grad:
        raise ValueError(
            "the closure's loss has no graph: compute it from the model, and neither detach it nor use no_grad"
        )
    try:
        found = gradients([loss], params, keep=keep)
    except RuntimeError as error:
        if "second time" in str(error):
            raise RuntimeError("the closure called backward(): return the loss and let step() differentiate") from error
        raise
    for i, g in enumerate(found):
        if g.layout != torch.strided:
            raise RuntimeError(
                f"parameter {i} of shape {tuple(g.shape)} has a sparse gradient ({g.layout}), and Gauss-Newton "
                "products need dense ones: build the layer with sparse=False"
            )
    return found


def damped_product(
    curvature: GaussNewton, weights: Weights, damping: float, structural: float
) -> Callable[[Tensor], Tensor]:
    """v → (G + λI + structural·J_hᵀJ_h) v for vectors."""

    def product(v: Tensor) -> Tensor:
        return weights.joined(curvature.product(weights.pieces(v), structural)).add_(v, alpha=damping)

    return product


def searched(
    solution: Solution,
    scale: Tensor,
    g: Tensor,
    f0: float,
    curvature: GaussNewton,
    weights: Weights,
    loss: Callable[[], float],
) -> Taken:
    """Take the best of the iterates by the loss, shorten it until it descends enough, and move the weights.

    Args:
        solution: of the damped system, in units where a step is ``scale`` times an iterate.
        scale: Λ^½.
        g: the gradient.
        f0: the loss where we are.
        curvature: G, for what the undamped model foretells.
        weights: where we are.
        loss: of the current parameters.
    """
    steps = [step for step in (scale * x for x in solution.iterates) if step.isfinite().all()]
    if not any(step.any() for step in steps):
        nothing_to_do = steps and solution.stop is not Stop.CURVATURE  # a gradient of zero, or lr 0
        return Taken(0.0, None if nothing_to_do else -math.inf, 0)
    evaluations = 0

    def loss_at(step: Tensor) -> float:
        nonlocal evaluations
        evaluations += 1
        return weights.loss_after(step, loss)

    chosen, f1 = best_iterate(steps, loss_at)
    d = steps[chosen]
    slope = float(g.dot(d))
    rho = reduction_ratio(f1 - f0, slope + 0.5 * curvature.quadratic(weights.pieces(d)))
    rate, _ = armijo(lambda t: loss_at(t * d), f0, slope, f1)
    if rate > 0.0:
        weights.move(rate * d)
    return Taken(rate, rho, evaluations)
