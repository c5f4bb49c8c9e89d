"""A network that solves a differential equation: the mean squared residual, and those of its conditions, vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.experiments.physics.equations import EQUATIONS, solution_of
from adaqn.experiments.physics.residuals import INSIDE, Residuals, ScaledNetwork
from adaqn.experiments.problems.whole import WholeBatch, relative_error
from adaqn.experiments.training.config import RunConfig


class Physics(WholeBatch):
    """The loss is the mean squared residual inside plus that of each condition, all with weight 1.

    Of the points 80 % are inside, the others equally spaced at the start and at the edges.
    """

    unit = "mean squared residual"

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        assert config.problem is not None
        assert config.points is not None
        self.equation = EQUATIONS[config.problem]()
        inside = round(INSIDE * config.points)
        self.inside = self.equation.inside(inside, config.seed)
        self.conditions = self.equation.conditions(config.points - inside)
        points = torch.cat([self.inside, *(condition.points for condition in self.conditions)])
        super().__init__(config, (points, self._weights()), f"generated:{config.problem}:{config.points}")
        solution = solution_of(config.problem)
        self.grid, self.exact = self.on_device(solution.points()), solution.values.flatten().to(config.device)

    def _weights(self) -> Tensor:
        """One per residual: its mean with them is the sum of the means of all terms."""
        rows = [len(self.inside)]
        for condition in self.conditions:
            empty = torch.zeros_like(condition.points)
            rows.append(len(condition.rows(empty[:, 0], empty)))
        return torch.cat([torch.full((count,), sum(rows) / count, dtype=torch.float64) for count in rows])

    def build(self) -> nn.Module:
        c = self.config
        assert c.layers is not None
        assert c.hidden is not None
        network = ScaledNetwork(c.layers, c.hidden, self.equation.low, self.equation.high)
        return Residuals(network, self.equation, self.inside, self.conditions)

    def losses(self, output: tuple[Tensor, Any], target: Tensor) -> Tensor:
        return target * output[0].square()

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        return relative_error(model.network(self.grid), self.exact)  # type: ignore[operator]
