"""A physics-informed network as a model: points in, what should be zero there out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from adaqn.experiments.physics.equation import Condition, Equation

INSIDE = 0.8
"""The share of the points that is inside; the others are for the conditions."""


class ScaledNetwork(nn.Module):
    """Hidden layers with tanh on inputs that are scaled to [−1, 1]; one number comes out.

    Weights are Glorot's normal ones and biases zero, as in papers on physics-informed networks.
    """

    def __init__(self, layers: int, hidden: int, low: Sequence[float], high: Sequence[float]) -> None:
        super().__init__()
        inputs = len(low)
        widths = [inputs, *[hidden] * layers]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.output = nn.Linear(hidden, 1)
        ends = torch.tensor([low, high], dtype=torch.float64)
        self.middle: Tensor
        self.scale: Tensor
        self.register_buffer("middle", ends.mean(0), persistent=False)
        self.register_buffer("scale", 2.0 / (ends[1] - ends[0]), persistent=False)

    def forward(self, points: Tensor) -> Tensor:
        x = (points - self.middle) * self.scale
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        output: Tensor = self.output(x).squeeze(1)
        return output


def glorot(model: nn.Module, generator: torch.Generator) -> None:
    """Every linear layer: N(0, 2/(inputs + outputs)), biases zero; the same numbers in every precision."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                rows, columns = module.weight.shape
                deviation = (2.0 / (rows + columns)) ** 0.5
                module.weight.copy_(deviation * torch.randn(rows, columns, generator=generator))
                module.bias.zero_()


class Residuals(nn.Module):
    """The network of an equation, called with all points at once: those inside first, then those of the conditions.

    First derivatives by both inputs are one pass through the graph, a second derivative is one more. Gradients of
    inputs are taken even where the caller wants none of the weights.

    Args:
        network: u of the points.
        equation: what holds inside.
        inside: the points there, of which the right-hand side is computed once; ``None`` if they change.
        conditions: what holds at the edges.
    """

    def __init__(
        self, network: nn.Module, equation: Equation, inside: Tensor | None, conditions: list[Condition]
    ) -> None:
        super().__init__()
        self.network, self.equation, self.conditions = network, equation, conditions
        self.fixed = inside is not None
        self.at_edges = sum(len(condition.points) for condition in conditions)
        self.source: Tensor | None
        self.register_buffer("source", None if inside is None else equation.source(inside), persistent=False)

    def forward(self, points: Tensor, hidden: None = None) -> tuple[Tensor, None]:
        keep = torch.is_grad_enabled()
        inside, edges = torch.split(points, [len(points) - self.at_edges, self.at_edges])
        with torch.enable_grad():
            rows = torch.cat([self._inside(inside, keep), *self._at_edges(edges, keep)])
        return (rows if keep else rows.detach()), None

    def _inside(self, points: Tensor, keep: bool) -> Tensor:
        source = self.source if self.fixed else self.equation.source(points)
        points = points.detach().requires_grad_()
        u = self.network(points)
        needed = self.equation.second
        (first,) = torch.autograd.grad(u.sum(), points, create_graph=keep or bool(needed))
        second = {}
        for number, axis in enumerate(needed):
            more = keep or number < len(needed) - 1
            (slopes,) = torch.autograd.grad(first[:, axis].sum(), points, create_graph=keep, retain_graph=more)
            second[axis] = slopes[:, axis]
        return self.equation.residual(u, first, second, source)

    def _at_edges(self, points: Tensor, keep: bool) -> list[Tensor]:
        first: Tensor | None = None
        if self.equation.slopes:
            points = points.detach().requires_grad_()
        u = self.network(points)
        if self.equation.slopes:
            (first,) = torch.autograd.grad(u.sum(), points, create_graph=keep)
        rows, begin = [], 0
        for condition in self.conditions:
            part = slice(begin, begin + len(condition.points))
            rows.append(condition.rows(u[part], None if first is None else first[part]))
            begin = part.stop
        return rows
