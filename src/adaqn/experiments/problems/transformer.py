"""A small GPT: pre-norm blocks of causal attention and a two-layer net, over learnt positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, scaled_dot_product_attention

HEAD_WIDTH = 32
"""Of a head, where the width of the model can be divided so."""
DEVIATION = 0.02
"""Of the first weights, as in GPT-2."""


class Transformer(nn.Module):
    """The next symbol after each of the last ``length`` ones; returns (logits, the symbols seen).

    What a recurrent net carries in its hidden state are here the symbols themselves: given those of before, the
    outputs are the same as if all had been given at once, as far as the positions reach.

    >>> model = Transformer(layers=1, hidden=8, vocabulary=5, length=4)
    >>> logits, seen = model(torch.tensor([[1, 2, 3]]))
    >>> logits.shape, model(torch.tensor([[4]]), seen)[1]
    (torch.Size([1, 3, 5]), tensor([[1, 2, 3, 4]]))
    """

    def __init__(self, layers: int, hidden: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.embedding = Embedded(vocabulary, length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads(hidden)) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, vocabulary, bias=False)
        self.twice_differentiable = False
        """Must the attention have a second derivative? The fast kernels have only a first."""

    def forward(self, x: Tensor, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context = x if seen is None else torch.cat([seen, x], dim=1)
        context = context[:, -self.length :]
        if self.twice_differentiable:
            with sdpa_kernel(SDPBackend.MATH):
                states = self._states(context)
        else:
            states = self._states(context)
        return self.output(states[:, -x.shape[1] :]), context

    def _states(self, context: Tensor) -> Tensor:
        states = self.embedding(context)
        for block in self.blocks:
            states = block(states)
        normed: Tensor = self.norm(states)
        return normed

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """As GPT-2: N(0, 0.02), and narrower where a block adds to the states, so that depth does not widen them."""
        for name, p in self.named_parameters():
            if p.dim() > 1:
                adds = name.endswith(("mixed.weight", "narrowed.weight"))
                deviation = DEVIATION / math.sqrt(2 * len(self.blocks)) if adds else DEVIATION
                nn.init.normal_(p, std=deviation, generator=generator)
            elif name.endswith(".bias"):
                p.zero_()


class Embedded(nn.Module):
    """Of each symbol and of its place."""

    def __init__(self, vocabulary: int, length: int, hidden: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, hidden)
        self.places = nn.Embedding(length, hidden)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.symbols(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return states


class Block(nn.Module):
    """states + attention(norm(states)), then the same with a net of one hidden layer, four times as wide."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.queries = nn.Linear(hidden, hidden)
        self.keys = nn.Linear(hidden, hidden)
        self.values = nn.Linear(hidden, hidden)
        self.mixed = nn.Linear(hidden, hidden)
        self.widened = nn.Linear(hidden, 4 * hidden)
        self.narrowed = nn.Linear(4 * hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        normed = self.first_norm(states)
        q, k, v = (part(normed).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self._parts())
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        states = states + self.mixed(attended)
        added: Tensor = self.narrowed(gelu(self.widened(self.second_norm(states))))
        return states + added

    def _parts(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.queries, self.keys, self.values


def heads(hidden: int) -> int:
    """As many as can be of one width, which is at least 32 where the model is that wide.

    >>> [heads(hidden) for hidden in (8, 96, 100, 128)]
    [1, 3, 2, 4]
    """
    return next(count for count in range(max(1, hidden // HEAD_WIDTH), 0, -1) if hidden % count == 0)
