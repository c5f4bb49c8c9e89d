"""The Hessian of a model's loss along s: what SQN learns from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.evaluation.losses import LossFunction
from adaqn.optim.model_curvature import BatchCurvature, Losses


class HessianProduct(BatchCurvature):
    """y = ∇²f_H(w̄)·s on a fresh batch H, at the candidate: the gradient's derivative along s, exactly.

    By double backward; for kernels that have none (cuDNN's recurrent ones) ``finite_difference`` compares the
    gradients at w̄ ± hs instead, with h such that the points lie ``finite_difference``·max(1, ‖w̄‖) away.

    Args:
        model: the unwrapped module whose parameters are optimized.
        loss_fn: ``(output, target)`` → the loss, a scalar or one per example, whose mean is taken.
        batches: batches ``(*inputs, target)`` or mappings of the training split, larger than those of the
            gradients: the authors take 300 to 1,000 examples. One is taken per cycle, in turn.
        finite_difference: for instance 1e-3 in float32; ``None`` differentiates twice.
    """

    signed = True

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, batches: Iterable[Any], *, finite_difference: float | None = None
    ) -> None:
        super().__init__(model, loss_fn, batches)
        if finite_difference is not None and not (math.isfinite(finite_difference) and finite_difference > 0.0):
            raise ValueError(f"finite_difference must be a positive finite number or None, got {finite_difference}")
        self.finite_difference = finite_difference

    def along(
        self, losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor], out: Sequence[Tensor] | None
    ) -> Sequence[Tensor]:
        y = hessian_product(losses, w, s) if self.finite_difference is None else self._difference(losses, w, s)
        if out is not None:
            torch._foreach_copy_(list(out), list(y))
        return y

    def _difference(self, losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor]) -> list[Tensor]:
        assert self.finite_difference is not None
        length = float(torch.stack([t.norm() for t in s]).norm())
        if length == 0.0:
            return [torch.zeros_like(t) for t in s]
        reach = self.finite_difference * max(1.0, float(torch.stack([p.norm() for p in w]).norm()))
        h = reach / length
        after, before = (gradient(losses, torch._foreach_add(list(w), list(s), alpha=sign * h)) for sign in (1, -1))
        return [(a - b) / (2.0 * h) for a, b in zip(after, before, strict=True)]


def gradient(losses: Losses, w: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor]:
    """∇ of the mean loss; zero where it does not depend on a parameter."""
    with torch.enable_grad():
        leaves = [p if create_graph else p.detach().requires_grad_() for p in w]
        loss = losses(leaves).mean()
        found = torch.autograd.grad(loss, leaves, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True)]


def hessian_product(losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor]) -> list[Tensor]:
    """∇²f·s by differentiating ∇f·s.

    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> (y,) = hessian_product(lambda p: 0.5 * p[0] @ A @ p[0], [torch.ones(2)], [torch.tensor([1.0, 0.0])])
    >>> y
    tensor([2., 1.])
    """
    with torch.enable_grad():
        leaves = [p.detach().requires_grad_() for p in w]
        along = [(g, t) for g, t in zip(gradient(losses, leaves, create_graph=True), s, strict=True) if g.requires_grad]
        if not along:  # a loss that is linear in all parameters
            return [torch.zeros_like(p) for p in w]
        second = torch.autograd.grad([g for g, _ in along], leaves, [t for _, t in along], allow_unused=True)
    return [torch.zeros_like(p) if y is None else y.detach() for p, y in zip(leaves, second, strict=True)]
