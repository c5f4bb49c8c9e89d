"""``nn.RNN`` on a CPU, for training: the same mathematics in fewer operations.

Autograd makes four nodes per step and layer, and adds up a weight gradient of every step. By hand, a layer's backward
pass is one product per step, and its weight gradients are one product for all steps. The results differ from
``nn.RNN`` only in rounding (``benchmarks/recurrent.py`` has the times).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence


class UnrolledRNN(nn.RNN):
    """``nn.RNN`` with ``batch_first=True``, a bias, one direction and no dropout.

    Devices other than the CPU, autocast, ``torch.func`` and packed or empty inputs use torch's own code. The output is
    kept for the backward pass: it must not be changed in place.

    >>> rnn = UnrolledRNN(3, 5, num_layers=2)
    >>> x = torch.randn(4, 7, 3)
    >>> torch.allclose(rnn(x)[0], nn.RNN.forward(rnn, x)[0], atol=1e-6)
    True
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh") -> None:
        super().__init__(input_size, hidden_size, num_layers, nonlinearity=nonlinearity, batch_first=True)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if not _is_plain(input):
            output, last = super().forward(input, hx)
            return output, last
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.shape[0], self.hidden_size)
        self.check_forward_args(input, hx, None)
        if hx.dtype != input.dtype:
            raise ValueError(f"the hidden state is {hx.dtype} and the input {input.dtype}: give both the same")
        states, lasts = input.transpose(0, 1).contiguous(), []
        for i in range(self.num_layers):
            w_input, w_hidden, b_input, b_hidden = self.all_weights[i]
            bias = b_input + b_hidden
            states = _Layer.apply(states, hx[i], w_input, w_hidden, bias, self.nonlinearity)  # type: ignore[no-untyped-call]
            lasts.append(states[-1])
        return states.transpose(0, 1), torch.stack(lasts)


class _Layer(torch.autograd.Function):
    """h_t = φ(W_i x_t + b + W_h h_{t-1}) for t = 1, …, T; x and h have shapes (T, batch, ·)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, nonlinearity: str
    ) -> Tensor:
        steps, batch, _ = x.shape
        h = x.new_empty(steps + 1, batch, len(w_hidden))
        h[0] = first
        torch.addmm(bias, x.flatten(0, 1), w_input.t(), out=h[1:].view(steps * batch, -1))
        activate = torch.tanh_ if nonlinearity == "tanh" else torch.relu_
        transposed = w_hidden.t()
        before, *states = h.unbind()
        for state in states:
            before = activate(state.addmm_(before, transposed))
        ctx.save_for_backward(x, first, w_input, w_hidden, bias, h)
        ctx.nonlinearity = nonlinearity
        return h[1:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, first, w_input, w_hidden, bias, h = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            inputs = (x, first, w_input, w_hidden, bias)
            return _differentiable_backward(inputs, ctx.nonlinearity, ctx.needs_input_grad, gradients[0])
        before, after = h[:-1].flatten(0, 1), h[1:]
        slopes = (after > 0).to(h.dtype) if ctx.nonlinearity == "relu" else 1.0 - after.square()
        delta = gradients[0].clone(memory_format=torch.contiguous_format)
        later: Tensor | None = None
        for now, slope in zip(reversed(delta.unbind()), reversed(slopes.unbind()), strict=True):
            if later is not None:
                now.addmm_(later, w_hidden)
            later = now.mul_(slope)  # δ_t = φ' · (∂f/∂h_t + W_hᵀ δ_{t+1})
        rows = delta.flatten(0, 1)
        return (
            (rows @ w_input).view_as(x) if ctx.needs_input_grad[0] else None,
            delta[0] @ w_hidden if ctx.needs_input_grad[1] else None,
            rows.t() @ x.flatten(0, 1) if ctx.needs_input_grad[2] else None,
            rows.t() @ before if ctx.needs_input_grad[3] else None,
            rows.sum(0) if ctx.needs_input_grad[4] else None,
            None,
        )


def _differentiable_backward(
    inputs: tuple[Tensor, ...], nonlinearity: str, needed: tuple[bool, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """The same gradients, from operations that autograd knows."""
    x, state, w_input, w_hidden, bias = inputs
    activate = torch.tanh if nonlinearity == "tanh" else torch.relu
    states = []
    for from_input in (x @ w_input.t() + bias).unbind():
        state = activate(from_input + state @ w_hidden.t())
        states.append(state)
    wanted = [tensor for tensor, is_needed in zip(inputs, needed, strict=False) if is_needed]
    found = iter(torch.autograd.grad(torch.stack(states), wanted, gradient, create_graph=True))
    return tuple(next(found) if is_needed else None for is_needed in needed)


def _is_plain(input: Tensor | PackedSequence) -> bool:
    """Is there nothing that a function of our own would need more formulas or rules for?"""
    if isinstance(input, PackedSequence) or input.dim() != 3 or not input.numel() or input.device.type != "cpu":
        return False
    has_tangents = forward_ad._current_level >= 0
    return not (has_tangents or torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu"))
