"""A small convolutional network for images of one channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from adaqn.experiments.problems.networks import Hidden


class Convolutional(nn.Module):
    """Layers of 3 × 3 convolutions, each with ReLU and a pooling that halves the sides; a linear output behind them.

    >>> Convolutional(layers=2, channels=4, side=8, outputs=10)(torch.zeros(3, 64))[0].shape
    torch.Size([3, 10])
    """

    def __init__(self, layers: int, channels: int, side: int, outputs: int) -> None:
        super().__init__()
        self.side = side
        self.hidden = nn.ModuleList(
            nn.Conv2d(1 if i == 0 else channels, channels, kernel_size=3, padding=1) for i in range(layers)
        )
        left = side >> layers
        self.output = nn.Linear(channels * left * left, outputs)

    def forward(self, x: Tensor, hidden: Hidden = None) -> tuple[Tensor, Hidden]:
        x = x.view(-1, 1, self.side, self.side)
        for layer in self.hidden:
            x = max_pool2d(torch.relu(layer(x)), 2)
        return self.output(x.flatten(1)), None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """As He et al. for layers before a ReLU; the output so that its variance is that of its inputs."""
        for p in self.hidden.parameters():
            if p.dim() > 1:
                nn.init.kaiming_normal_(p, nonlinearity="relu", generator=generator)
            else:
                p.zero_()
        nn.init.kaiming_normal_(self.output.weight, nonlinearity="linear", generator=generator)
        self.output.bias.zero_()
