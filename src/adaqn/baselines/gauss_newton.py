"""Products with the generalized Gauss-Newton matrix G = Jᵀ H_L J, as functions of tensors with their graphs.

J is the Jacobian of the outputs in the parameters and H_L the Hessian of the loss in the outputs. G is positive
semidefinite where H_L is: for losses convex in the outputs, such as squared error of linear outputs and cross
entropy of logits. All of it lives on a retained graph; nothing here calls a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from adaqn.core.jacobian import Jvp, double_backward_jvp, gradients

PRECONDITIONER_POWER = 0.75
SMALLEST_SHARE = 1e-8


class GaussNewton:
    """v → G v + structural·J_hᵀJ_h v for a loss, its outputs and, if given, hidden states.

    The second term is structural damping (Martens and Sutskever 2011): the Gauss-Newton matrix of
    ½‖h(w) − h(w₀)‖², which keeps the hidden states of a recurrent net from moving far in one step.

    Args:
        loss: a scalar that depends on the parameters through the outputs.
        outputs: the tensors the loss was computed from; none may depend on another.
        params: the leaves, in the order of the vectors.
        hidden: hidden states, of any shapes.
        jvp: v → J v for the outputs followed by the hidden states; by double backward if not given.

    >>> x, w = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2, requires_grad=True)
    >>> out = x @ w
    >>> G = GaussNewton(0.5 * (out**2).sum(), [out], [w])  # H_L = I
    >>> v = torch.tensor([1.0, -1.0])
    >>> torch.equal(G.product([v])[0], x.T @ (x @ v))
    True
    """

    def __init__(
        self,
        loss: Tensor,
        outputs: Sequence[Tensor],
        params: Sequence[Tensor],
        hidden: Sequence[Tensor] = (),
        jvp: Jvp | None = None,
    ) -> None:
        self.outputs, self.hidden, self.params = list(outputs), list(hidden), list(params)
        found = torch.autograd.grad(loss, self.outputs, create_graph=True, allow_unused=True)
        if all(slope is None for slope in found):
            raise ValueError(
                "the loss does not depend on the outputs: return the very tensors that it was computed from"
            )
        self.slope = [torch.zeros_like(o) if s is None else s for o, s in zip(self.outputs, found, strict=True)]
        """∂L/∂outputs."""
        self.jvp = jvp or double_backward_jvp([*self.outputs, *self.hidden], self.params)

    def product(self, v: Sequence[Tensor], structural: float = 0.0) -> list[Tensor]:
        """G v + structural·J_hᵀJ_h v, shaped like the parameters."""
        jv, jhv = self._split(self.jvp(v))
        weights = [*self.loss_hessian(jv), *(structural * t for t in jhv)]
        return gradients([*self.outputs, *self.hidden], self.params, weights)

    def quadratic(self, v: Sequence[Tensor]) -> float:
        """vᵀG v, for half the price of a product."""
        jv, _ = self._split(self.jvp(v))
        return dot(jv, self.loss_hessian(jv))

    def loss_hessian(self, u: Sequence[Tensor]) -> list[Tensor]:
        """H_L u; zero for a loss linear in the outputs."""
        return gradients(self.slope, self.outputs, u)

    def _split(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return tensors[: len(self.outputs)], tensors[len(self.outputs) :]


def fisher_diagonal(
    slope: Sequence[Tensor],
    outputs: Sequence[Tensor],
    params: Sequence[Tensor],
    *,
    batch_dim: int = 0,
    draws: int = 8,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """An unbiased estimate of the mean over the examples of g_i², without one gradient per example.

    For a loss that is a mean over N examples, each of which acts on its own slice of the outputs, random signs
    ε_i on the slices of ∂L/∂outputs give Σ ε_i g_i / N by one backward pass, and E (Σ ε_i g_i)² = Σ g_i².

    Args:
        slope: ∂L/∂outputs.
        outputs: with their graph.
        params: the leaves.
        batch_dim: the dimension of every output that counts the examples.
        draws: backward passes to average; the relative error of an entry is about √(2/draws).
        generator: of the signs, on the CPU.
    """
    total = [torch.zeros_like(p) for p in params]
    for _ in range(draws):
        signs = _signs([cases(out, batch_dim) for out in outputs], generator)
        signed = [s.detach() * _along(e.to(s), s, batch_dim) for s, e in zip(slope, signs, strict=True)]
        for t, g in zip(total, gradients(outputs, params, signed), strict=True):
            t.addcmul_(g, g, value=cases(outputs[0], batch_dim) / draws)
    return total


def diagonal_preconditioner(squares: Tensor, damping: float) -> Tensor:
    """(squares + λ)^0.75 (Martens 2010, section 4.7), with entries of almost nothing raised so that it has an inverse.

    >>> diagonal_preconditioner(torch.tensor([15.0, 0.0]), 1.0)
    tensor([8., 1.])
    """
    entries = squares + damping
    largest = float(entries.max())
    return entries.clamp_min_(SMALLEST_SHARE * largest if largest > 0.0 else 1.0).pow_(PRECONDITIONER_POWER)


def cases(tensor: Tensor, batch_dim: int) -> int:
    """How many examples a tensor holds; a single number is one."""
    return tensor.shape[batch_dim] if tensor.dim() else 1


def dot(a: Iterable[Tensor], b: Iterable[Tensor]) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))


def _signs(counts: Sequence[int], generator: torch.Generator | None) -> list[Tensor]:
    """Random signs, the same for all outputs of one example."""
    signs = torch.randint(0, 2, (max(counts),), generator=generator).mul_(2).sub_(1)
    return [signs[:count] for count in counts]


def _along(signs: Tensor, like: Tensor, batch_dim: int) -> Tensor:
    shape = [1] * like.dim()
    if shape:
        shape[batch_dim] = -1
    return signs.reshape(shape)
