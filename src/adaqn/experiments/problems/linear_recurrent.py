"""Recurrent layers made of nn.Linear, for methods that must see the inputs and gradients of every product.

The same mathematics, arguments and results as ``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` with ``batch_first=True``. The
products with the inputs are one call per layer for all steps, those with the hidden state one call per step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class LinearRecurrent(nn.Module):
    """Layers h_t = cell(W_i x_t + b_i, W_h h_{t-1} + b_h, state); a cell says how many rows these have per unit.

    Called as ``output, last = layers(x, first)`` with x of shape (batch, steps, inputs), or (steps, inputs) without a
    batch; the hidden state has shape (layers, batch, hidden) and is zero if not given.
    """

    rows = 1
    twin: type[nn.RNNBase] = nn.RNNBase
    """Torch's module of the same mathematics."""
    nonlinearity = "tanh"

    def __init__(self, inputs: int, hidden: int, layers: int = 1, *, bias: bool = True) -> None:
        super().__init__()
        for name, value in (("inputs", inputs), ("hidden", hidden), ("layers", layers)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.inputs, self.hidden, self.layers, self.bias = inputs, hidden, layers, bias
        widths = [inputs] + [hidden] * (layers - 1)
        self.from_input = nn.ModuleList(nn.Linear(width, self.rows * hidden, bias) for width in widths)
        self.from_hidden = nn.ModuleList(nn.Linear(hidden, self.rows * hidden, bias) for _ in widths)
        with torch.no_grad():  # the range of torch's recurrent layers
            for p in self.parameters():
                nn.init.uniform_(p, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, first: Any = None) -> tuple[Tensor, Any]:
        self._check(x)
        if x.dim() == 2:
            first = None if first is None else self._map(lambda t: t.unsqueeze(1), first)
            output, last = self.forward(x.unsqueeze(0), first)
            return output.squeeze(0), self._map(lambda t: t.squeeze(1), last)
        states = self._unpack(first, x)
        lasts = []
        for i in range(self.layers):
            x, state = self._layer(i, x, tuple(s[i] for s in states))
            lasts.append(state)
        return x, self._pack(tuple(torch.stack(parts) for parts in zip(*lasts, strict=True)))

    def _layer(self, i: int, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs = []
        for from_input in self.from_input[i](x).unbind(1):
            state = self._cell(from_input, self.from_hidden[i](state[0]), state)
            outputs.append(state[0])
        return torch.stack(outputs, dim=1), state

    def _cell(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The new state; its first part is the output."""
        raise TypeError(f"{type(self).__name__} has no cell: override _cell()")

    @torch.no_grad()
    def copy_from(self, module: nn.RNNBase) -> None:
        """Take over the weights of torch's module of the same kind and shape."""
        if _description(module) != self._description():
            raise ValueError(
                f"{module} does not have the kind and shape of this layer, {self._description()}: "
                "use from_torch(module)"
            )
        for kind, linears in (("ih", self.from_input), ("hh", self.from_hidden)):
            for i, linear in enumerate(linears):
                for name, p in linear.named_parameters():
                    p.copy_(getattr(module, f"{name}_{kind}_l{i}"))

    def _description(self) -> tuple[Any, ...]:
        return self.twin.__name__, self.inputs, self.hidden, self.layers, self.bias, self.nonlinearity

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"inputs must be a tensor, got {type(x).__name__}: pad the sequences to one length")
        if x.dim() not in (2, 3) or x.shape[-1] != self.inputs or x.shape[-2] == 0:
            raise ValueError(
                f"inputs must have shape (batch, steps, {self.inputs}) or (steps, {self.inputs}) with at least one "
                f"step, got {tuple(x.shape)}"
            )

    def _unpack(self, first: Any, x: Tensor) -> tuple[Tensor, ...]:
        """The parts of the hidden state."""
        zeros = x.new_zeros(self.layers, x.shape[0], self.hidden)
        return (zeros if first is None else first,)

    def _pack(self, states: tuple[Tensor, ...]) -> Any:
        return states[0]

    @staticmethod
    def _map(function: Any, state: Any) -> Any:
        return tuple(map(function, state)) if isinstance(state, tuple | list) else function(state)


class LinearRNN(LinearRecurrent):
    """h = tanh(W_i x + b_i + W_h h + b_h), or with ReLU.

    >>> output, last = LinearRNN(3, 5, layers=2)(torch.randn(4, 7, 3))
    >>> output.shape, last.shape
    (torch.Size([4, 7, 5]), torch.Size([2, 4, 5]))
    """

    twin = nn.RNN

    def __init__(
        self, inputs: int, hidden: int, layers: int = 1, nonlinearity: str = "tanh", *, bias: bool = True
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(inputs, hidden, layers, bias=bias)
        self.nonlinearity = nonlinearity

    def _cell(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = from_input + from_hidden
        return (torch.tanh(total) if self.nonlinearity == "tanh" else torch.relu(total),)


class LinearLSTM(LinearRecurrent):
    """i, f, o = σ(...), c = f c + i tanh(...), h = o tanh(c); the hidden state is the pair (h, c)."""

    rows = 4
    twin = nn.LSTM

    def _cell(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        i, f, g, o = (from_input + from_hidden).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def _unpack(self, first: Any, x: Tensor) -> tuple[Tensor, ...]:
        if first is None:
            zeros = x.new_zeros(self.layers, x.shape[0], self.hidden)
            return zeros, zeros
        h, c = first
        return h, c

    def _pack(self, states: tuple[Tensor, ...]) -> Any:
        return states


class LinearGRU(LinearRecurrent):
    """r, z = σ(...), n = tanh(W_i x + b_i + r (W_h h + b_h)), h = (1 − z) n + z h."""

    rows = 3
    twin = nn.GRU

    def _cell(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (ir, iz, i_n), (hr, hz, hn) = from_input.chunk(3, dim=-1), from_hidden.chunk(3, dim=-1)
        z = torch.sigmoid(iz + hz)
        n = torch.tanh(i_n + torch.sigmoid(ir + hr) * hn)
        return ((1.0 - z) * n + z * state[0],)


def from_torch(module: nn.RNNBase) -> LinearRecurrent:
    """A layer of this file with the shape, weights, dtype and device of an nn.RNN, nn.LSTM or nn.GRU.

    >>> rnn = nn.LSTM(3, 5, batch_first=True)
    >>> x = torch.randn(4, 7, 3)
    >>> torch.allclose(from_torch(rnn)(x)[0], rnn(x)[0], atol=1e-6)
    True
    """
    if not isinstance(module, nn.RNN | nn.LSTM | nn.GRU):
        raise TypeError(f"from_torch takes an nn.RNN, nn.LSTM or nn.GRU, got {type(module).__name__}")
    for name, needed in (("batch_first", True), ("bidirectional", False), ("dropout", 0), ("proj_size", 0)):
        if getattr(module, name) != needed:
            raise ValueError(f"{module} has {name}={getattr(module, name)}, and only {name}={needed} is supported here")
    shape = (module.input_size, module.hidden_size, module.num_layers)
    if isinstance(module, nn.RNN):
        made: LinearRecurrent = LinearRNN(*shape, module.nonlinearity, bias=module.bias)
    else:
        made = (LinearLSTM if isinstance(module, nn.LSTM) else LinearGRU)(*shape, bias=module.bias)
    weight = module.weight_ih_l0
    assert isinstance(weight, Tensor)
    made.to(weight.device, weight.dtype)
    made.copy_from(module)
    return made.train(module.training)


def _description(module: nn.RNNBase) -> tuple[Any, ...]:
    nonlinearity = getattr(module, "nonlinearity", "tanh")
    kind = next(kind for kind in (nn.RNN, nn.LSTM, nn.GRU) if isinstance(module, kind))  # or a subclass
    return kind.__name__, module.input_size, module.hidden_size, module.num_layers, module.bias, nonlinearity
