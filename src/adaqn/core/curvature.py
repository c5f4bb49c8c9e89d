"""Where y comes from: the product of a curvature matrix with s. (Alg. 1, l. 18)

A curvature sees every gradient (``observe``), is asked for one product per cycle, and says how
many rows as long as the parameters it keeps between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from adaqn.core.checks import at_least_one
from adaqn.core.history import Ring
from adaqn.core.jacobian import double_backward_jvp, forward_mode, with_fallback
from adaqn.core.products import Reduce, add_combination, dots, local

_CACHED_BYTES = 1 << 22
_SMALLEST_CHUNK = 4


class Curvature:
    """The interface; by itself it keeps nothing."""

    rows = 0
    """How many vectors of length n are kept between steps."""
    number_names: tuple[str, ...] = ()
    """The plain numbers that are kept between steps."""
    signed = False
    """Does the product change its sign with the objective's? Of a Hessian it does, of a Fisher matrix not."""
    needs_closure = False
    """Does it run the closure of a step once more?"""
    needs_monitor = False
    """Does it compare gradients of the monitored loss?"""
    needs_model = False
    """Does it evaluate a model, on batches of its own, and so need whole vectors in every process?"""

    def observe(self, g: Tensor) -> None:
        """See the gradient of this step."""

    def see(self, g: Tensor, ok: Tensor, scratch: Tensor) -> None:
        """The gradient of this step; where ``ok`` is 0 it was not finite, and nothing may be learnt from it.

        ``observe`` is called only for finite ones, which the host must wait for: override this instead and use ``ok``
        as a factor, and nobody waits. ``scratch`` is a vector whose content nobody needs.
        """
        if type(self).observe is not Curvature.observe and bool(ok):
            self.observe(g)

    def settle(self, count: int) -> None:
        """The host learns that so many of the gradients since the last call were finite."""

    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        """out ← curvature·s at the candidate."""
        raise TypeError(f"{type(self).__name__} has no product with s: override product()")

    @property
    def is_ready(self) -> bool:
        """Can it say anything of this cycle?"""
        return True

    def anchor_moved(self) -> None:
        """The candidate has become the anchor."""

    def clear(self) -> None:
        """The step was rejected: forget what led to it."""

    def build(self, data: Tensor, reduce: Reduce = local) -> None:
        """Take over a zeroed buffer of shape (rows, n)."""

    def numbers(self) -> dict[str, float]:
        """The value of each of ``number_names``."""
        return {}

    def load_numbers(self, numbers: dict[str, float]) -> None:
        """Take back what ``numbers`` gave."""


class NoCurvature(Curvature):
    """Of a method that keeps no pairs: there is nothing to say of any cycle."""

    @property
    def is_ready(self) -> bool:
        return False


class AccumulatedFisher(Curvature):
    """y = (1/|F̃|) Σ g_i (g_i·s) over the last ``size`` gradients, the paper's aFIM.

    With ``batch_size`` the divisor is Σ|B_j| = |F̃|·batch_size, as in the paper's equation for the
    aFIM rather than its line 18 (D4). The rows may lie in another dtype, and on another device
    than s.
    """

    number_names = ("start", "size")

    def __init__(self, size: int = 100, batch_size: int = 1) -> None:
        self.rows = at_least_one("fisher_size", size)
        self.batch_size = at_least_one("batch_size", batch_size)
        self.reduce: Reduce = local

    def build(self, data: Tensor, reduce: Reduce = local) -> None:
        self.ring = Ring(data)
        self.reduce = reduce

    def numbers(self) -> dict[str, float]:
        return {"start": self.ring.start, "size": self.ring.size}

    def load_numbers(self, numbers: dict[str, float]) -> None:
        self.ring.start, self.ring.size = int(numbers["start"]), int(numbers["size"])

    def observe(self, g: Tensor) -> None:
        self.ring.push(g)  # Alg. 1, l. 6

    def see(self, g: Tensor, ok: Tensor, scratch: Tensor) -> None:
        self.ring.push_if(g, ok, scratch)

    def settle(self, count: int) -> None:
        self.ring.settle(count)

    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        rows = self.ring.rows
        if rows.device == s.device:
            return self._product(rows, s, out.zero_())
        at_rows = s.to(rows.device)
        return out.copy_(self._product(rows, at_rows, torch.zeros_like(at_rows)))

    def _product(self, rows: Tensor, s: Tensor, zeros: Tensor) -> Tensor:
        chunk = _CACHED_BYTES // max(1, rows.shape[1] * rows.element_size())  # a process may hold nothing
        # In chunks that fit the cache the second product reads nothing from memory. Rows too long for that, and
        # rows of which each process holds a part, take one pass each.
        pieces = torch.split(rows, chunk) if chunk >= _SMALLEST_CHUNK and self.reduce is local else (rows,)
        for piece in pieces:
            weights = self.reduce(dots(piece, s)) / (self.ring.size * self.batch_size)
            add_combination(zeros, piece, weights)
        return zeros

    def clear(self) -> None:
        self.ring.clear()


PerExample = Callable[[Sequence[Tensor]], Tensor]
"""Parameters → a 1-D tensor of losses, one per example."""
_Slope = tuple[Tensor, Tensor, list[Tensor]]
"""The losses with their graph, J s, and the leaves where that graph ends."""


def empirical_fisher_product(
    losses: PerExample, w: Sequence[Tensor], s: Sequence[Tensor], out: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """(1/|H|) Jᵀ(J s) with J the Jacobian of the per-example losses at w: no per-example gradient.

    One pass in forward mode gives J s, one backward pass through the same graph gives the rest.
    Kernels that have no forward mode (the LSTM on a CPU) get J s by differentiating Jᵀv in v.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    >>> w, s = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0])
    >>> (y,) = empirical_fisher_product(lambda p: x @ p[0], [w], [s])  # J = x
    >>> torch.allclose(y, x.T @ (x @ s) / 2)
    True
    """
    with torch.enable_grad():
        product = with_fallback(partial(_forward_mode, losses, w), lambda: partial(_double_backward, losses, w))
        value, js, leaves = product(s)
    y = [torch.zeros_like(p) for p in w] if out is None else [tensor.zero_() for tensor in out]
    for leaf, gradient in zip(leaves, y, strict=True):
        leaf.grad = gradient
    # Into .grad, which autograd adds to in place, layer by layer: there is never a second set of gradients.
    torch.autograd.backward(value, js / value.numel(), inputs=leaves)
    return y


def _forward_mode(losses: PerExample, w: Sequence[Tensor], s: Sequence[Tensor]) -> _Slope:
    (value,), (js,), leaves = forward_mode(lambda leaves: [_checked(losses(leaves))], w, s)
    return value, torch.zeros_like(value) if js is None else js, leaves


def _double_backward(losses: PerExample, w: Sequence[Tensor], s: Sequence[Tensor]) -> _Slope:
    leaves = [p.detach().requires_grad_() for p in w]
    value = _checked(losses(leaves))
    (js,) = double_backward_jvp([value], leaves)([t.to(p.dtype) for t, p in zip(s, w, strict=True)])
    return value, js, leaves


def _checked(losses: Tensor) -> Tensor:
    if losses.dim() != 1:
        raise ValueError(
            f"per_example_loss must return one loss per example, a 1-D tensor; got shape "
            f"{tuple(losses.shape)}: use reduction='none' and average over all but the batch"
        )
    return losses
