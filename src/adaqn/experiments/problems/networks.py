"""The networks of the paper's experiments, small and plain."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adaqn.experiments.problems.unrolled import UnrolledRNN

CELLS = ("tanh", "relu", "lstm", "gru")
TRANSFORMER, CONV = "transformer", "conv"
MODELS = (*CELLS, TRANSFORMER, CONV)
Hidden = Tensor | tuple[Tensor, Tensor] | None


class Recurrent(nn.Module):
    """Recurrent layers with an input in front and a linear output behind; returns (output, last hidden state).

    With ``vocabulary`` the inputs are symbols and every step has an output; without it they are vectors of
    ``features`` and the last step alone has one.
    """

    def __init__(self, cell: str, layers: int, hidden: int, outputs: int, *, vocabulary: int = 0, features: int = 0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden) if vocabulary else None
        inputs = hidden if vocabulary else features
        if cell in ("tanh", "relu"):
            self.cells: nn.Module = UnrolledRNN(inputs, hidden, layers, cell)
        else:
            self.cells = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](inputs, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, hidden: Hidden = None) -> tuple[Tensor, Hidden]:
        if self.embedding is not None:
            states, hidden = self.cells(self.embedding(x), hidden)
            return self.output(states), hidden
        states, hidden = self.cells(x, hidden)
        return self.output(states[:, -1]), hidden


class FeedForward(nn.Module):
    """Hidden layers of one width with tanh or ReLU between them."""

    def __init__(self, activation: str, layers: int, hidden: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(inputs if i == 0 else hidden, hidden) for i in range(layers))
        self.activation = {"tanh": torch.tanh, "relu": torch.relu}[activation]
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, hidden: Hidden = None) -> tuple[Tensor, Hidden]:
        x = x.flatten(1)
        for layer in self.hidden:
            x = self.activation(layer(x))
        return self.output(x), None


def initialise(model: nn.Module, spread: str, generator: torch.Generator) -> None:
    """All weights from N(0, 0.01), biases zero; ``spread`` says whether 0.01 is the ``"variance"`` or the ``"std"``."""
    deviation = math.sqrt(0.01) if spread == "variance" else 0.01
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=generator) * deviation)
            else:
                p.zero_()
