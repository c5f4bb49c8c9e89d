"""Products with the Jacobian J of some outputs: Jᵀu by a backward pass, J v in forward mode or by a double backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Parameters → outputs."""
Along = Callable[[Sequence[Tensor]], T]
"""v, one tensor per parameter → something along v."""
Jvp = Along[list[Tensor]]
"""v → J v, one tensor per output."""


def gradients(
    tensors: Sequence[Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor] | None = None,
    *,
    create_graph: bool = False,
    keep: bool = True,
) -> list[Tensor]:
    """Jᵀ weights: the gradients of the tensors in the inputs, zero where nothing depends on an input."""
    pairs = [(t, None if weights is None else weights[i]) for i, t in enumerate(tensors) if t.requires_grad]
    if not pairs:
        return [torch.zeros_like(p) for p in inputs]
    found = torch.autograd.grad(
        [t for t, _ in pairs],
        list(inputs),
        [w for _, w in pairs],
        retain_graph=keep or create_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    return [torch.zeros_like(p) if g is None else g for p, g in zip(inputs, found, strict=True)]


def double_backward_jvp(outputs: Sequence[Tensor], params: Sequence[Tensor]) -> Jvp:
    """v → J v on the retained graph: Jᵀu is linear in u, and its derivative in u along v is J v.

    >>> x, w = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2, requires_grad=True)
    >>> double_backward_jvp([x @ w], [w])([torch.tensor([1.0, -1.0])])
    [tensor([-1., -1.])]
    """
    dummies = [torch.zeros_like(out, requires_grad=True) for out in outputs]
    transposed = gradients(outputs, params, dummies, create_graph=True)
    return lambda v: gradients(transposed, dummies, v)


def forward_mode(
    function: Function, w: Sequence[Tensor], v: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor | None], list[Tensor]]:
    """(Outputs, J v, the leaves that stood for w); no J v where an output does not depend on w.

    The outputs have a graph that ends at the leaves if gradients are enabled. Raises NotImplementedError if a kernel
    has no forward mode, as the float32 LSTM on a CPU.
    """
    ad = torch.autograd.forward_ad
    with ad.dual_level():
        # The duals are the leaves: a node between leaf and layer would run last, with all gradients alive.
        duals = [ad.make_dual(p.detach(), t.to(p.dtype).contiguous()) for p, t in zip(w, v, strict=True)]  # type: ignore[no-untyped-call]
        leaves = [dual.requires_grad_() for dual in duals] if torch.is_grad_enabled() else duals
        pairs = [ad.unpack_dual(out) for out in function(leaves)]  # type: ignore[no-untyped-call]
        tangents = [None if tangent is None else tangent.detach().clone() for _, tangent in pairs]
        return [value for value, _ in pairs], tangents, leaves


def with_fallback(first: Along[T], second: Callable[[], Along[T]]) -> Along[T]:
    """``first`` until it turns out that a kernel has no forward mode, then ``second()``, made once."""
    made: list[Along[T]] = []

    def along(v: Sequence[Tensor]) -> T:
        if not made:
            try:
                return first(v)
            except NotImplementedError:
                made.append(second())
        return made[0](v)

    return along
