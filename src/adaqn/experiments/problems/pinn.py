"""A network that solves a differential equation: the mean squared residual, and those of its conditions, vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.experiments.physics.equations import EQUATIONS, solution_of
from adaqn.experiments.physics.residuals import INSIDE, Residuals, ScaledNetwork
from adaqn.experiments.problems.tasks import Batch
from adaqn.experiments.problems.whole import WholeBatch, relative_error
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.whole_settings import NETWORK

USUAL_POINTS: int = NETWORK["points"]
MEASURED_INSIDE = 4 * USUAL_POINTS
"""Points inside at which the loss of resampled runs is measured."""
MEASURED_SEED = 20_231
"""Theirs: the same points for every run."""
MONITORED = 2**31
"""The number of the sample of a monitor: no run gets so far."""


class Physics(WholeBatch):
    """The loss is the mean squared residual inside plus that of each condition, all with weight 1.

    Of the points 80 % are inside, the others equally spaced at the start and at the edges. With ``resample`` those
    inside are drawn anew after so many evaluations. The conditions then keep the 400 points of a usual run, however
    few are drawn: they cost next to nothing, and a sample is small only where it is drawn.
    """

    unit = "mean squared residual"

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        assert config.problem is not None
        assert config.points is not None
        self.equation = EQUATIONS[config.problem]()
        self.count_inside = round(INSIDE * config.points)
        at_edges = config.points - self.count_inside
        if config.resample:
            at_edges = max(at_edges, USUAL_POINTS - round(INSIDE * USUAL_POINTS))
        self.conditions = self.equation.conditions(at_edges)
        self.config = config
        super().__init__(config, self._with_edges(self._inside()), f"generated:{config.problem}:{config.points}")
        if config.resample:
            measured = self._with_edges(self.equation.inside(MEASURED_INSIDE, MEASURED_SEED))
            self.splits["test"] = self._moved(measured)
        solution = solution_of(config.problem)
        self.grid, self.exact = self.on_device(solution.points()), solution.values.flatten().to(config.device)

    def _inside(self) -> Tensor:
        if self.config.resample:
            return self.equation.sample(self.count_inside, self.config.seed, 0)
        return self.equation.inside(self.count_inside, self.config.seed)

    def _with_edges(self, inside: Tensor) -> Batch:
        points = torch.cat([inside, *(condition.points for condition in self.conditions)])
        return points, self._weights(len(inside))

    def _moved(self, batch: Batch) -> Batch:
        return self.on_device(batch[0]), self.on_device(batch[1])

    def _weights(self, inside: int) -> Tensor:
        """One per residual: its mean with them is the sum of the means of all terms."""
        rows = [inside]
        for condition in self.conditions:
            empty = torch.zeros_like(condition.points)
            rows.append(len(condition.rows(empty[:, 0], empty)))
        return torch.cat([torch.full((count,), sum(rows) / count, dtype=torch.float64) for count in rows])

    def sample(self, number: int) -> Batch:
        inside = self.equation.sample(self.count_inside, self.config.seed, number)
        return self._moved(self._with_edges(inside))

    def monitoring_set(self) -> Batch:
        """All points, or a sample of its own where they change."""
        return self.sample(MONITORED) if self.config.resample else super().monitoring_set()

    def build(self) -> nn.Module:
        c = self.config
        assert c.layers is not None
        assert c.hidden is not None
        network = ScaledNetwork(c.layers, c.hidden, self.equation.low, self.equation.high)
        return Residuals(network, self.equation, None if c.resample else self._inside(), self.conditions)

    def losses(self, output: tuple[Tensor, Any], target: Tensor) -> Tensor:
        return target * output[0].square()

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        return relative_error(model.network(self.grid), self.exact)  # type: ignore[operator]
