"""The Hessian of a loss along s: exactly, by differentiating twice, or from two gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Losses = Callable[[Sequence[Tensor]], Tensor]
"""Parameters → their loss on one batch."""


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


def hessian_difference(losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor], reach: float) -> list[Tensor]:
    """∇²f·s from the gradients at w ± hs, with h such that the points lie ``reach``·max(1, ‖w‖) away."""
    length = float(torch.stack([t.norm() for t in s]).norm())
    if length == 0.0:
        return [torch.zeros_like(t) for t in s]
    h = reach * max(1.0, float(torch.stack([p.norm() for p in w]).norm())) / length
    after, before = (gradient(losses, torch._foreach_add(list(w), list(s), alpha=sign * h)) for sign in (1, -1))
    return [(a - b) / (2.0 * h) for a, b in zip(after, before, strict=True)]
