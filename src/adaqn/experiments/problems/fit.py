"""Fits to the whole batch: a deep autoencoder, the digits, a function, and a matrix with gaps."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adaqn.experiments.data.digits import load_digits
from adaqn.experiments.errors import UserError
from adaqn.experiments.physics.equation import sobol
from adaqn.experiments.physics.residuals import ScaledNetwork
from adaqn.experiments.problems.networks import FeedForward, Hidden
from adaqn.experiments.problems.tasks import Batch
from adaqn.experiments.problems.whole import WholeBatch, relative_error
from adaqn.experiments.training.config import RunConfig

WIDTHS = {"embedded": (100, 50, 10), "mnist": (1000, 500, 250, 30)}
"""Of an encoder's layers; the decoder is its mirror image. The second is Hinton and Salakhutdinov's."""
PENALTY = 1e-4
"""λ of ½ λ ‖w‖², where weights are penalised."""
ROWS, COLUMNS, RANK = 200, 150, 5
"""Of the matrix with gaps."""


class Mirrored(nn.Module):
    """An autoencoder: tanh everywhere but at the output, which is linear."""

    def __init__(self, inputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [inputs, *widths, *widths[-2::-1], inputs]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor, hidden: Hidden = None) -> tuple[Tensor, None]:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x), None


class Images(WholeBatch):
    """Digits as vectors of pixels, with a test split that is only reported."""

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        digits = load_digits(config.data, data_dir, config.side)
        x, labels = digits.splits["train"]
        batch = self.pair(x.flatten(1)[: config.limit], labels[: config.limit])
        super().__init__(config, batch, digits.sha256)
        images, labels = digits.splits["test"]
        self.test = (self.on_device(images.flatten(1)), labels.to(config.device))

    def pair(self, x: Tensor, labels: Tensor) -> Batch:
        """Inputs and targets."""
        return x, x


class Autoencoder(Images):
    """64-100-50-10-50-100-64 on the 8 × 8 digits, or 784-1000-500-250-30-… on MNIST; ``hidden`` scales all widths."""

    unit = "mean squared error of a pixel"

    def build(self) -> nn.Module:
        c = self.config
        assert c.hidden is not None
        usual = WIDTHS[c.data]
        if c.layers != len(usual):
            raise UserError(f"the encoder of {c.data} has {len(usual)} layers, not {c.layers}: --hidden scales them")
        widths = tuple(max(2, round(width * c.hidden / usual[0])) for width in usual)
        return Mirrored(self.splits["train"][0].shape[1], widths)

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        return relative_error(model(self.test[0])[0], self.test[0])


class Classes(Images):
    """The digit in an image, with a small penalty on the weights."""

    unit = "nats, with the penalty"
    error_name = "share of test digits taken for another"

    def pair(self, x: Tensor, labels: Tensor) -> Batch:
        return x, labels

    def build(self) -> nn.Module:
        c = self.config
        assert c.layers is not None
        assert c.hidden is not None
        return FeedForward(c.model, c.layers, c.hidden, self.splits["train"][0].shape[1], 10)

    def losses(self, output: tuple[Tensor, Any], target: Tensor) -> Tensor:
        return cross_entropy(output[0], target, reduction="none")

    def penalty(self, model: nn.Module) -> Tensor | None:
        return 0.5 * PENALTY * torch.stack([p.square().sum() for p in model.parameters()]).sum()

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        x, labels = self.test
        return float((model(x)[0].argmax(1) != labels).double().mean())


def wavy(points: Tensor) -> Tensor:
    """A smooth function on [−1, 1]² with slow and fast waves.

    >>> wavy(torch.tensor([[0.0, 0.5]]))
    tensor([0.])
    """
    x, y = points[:, 0], points[:, 1]
    return torch.sin(2.0 * math.pi * x) * torch.cos(math.pi * y) + 0.5 * torch.sin(6.0 * math.pi * x * (1.0 + 0.5 * y))


class OneNumber(nn.Module):
    """A network with the outputs and the hidden state that the laboratory's models have."""

    def __init__(self, network: ScaledNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, hidden: Hidden = None) -> tuple[Tensor, None]:
        return self.network(x)[:, None], None


class Regression(WholeBatch):
    """The wavy function at Sobol points, measured on a grid between them."""

    unit = "mean squared error"

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        assert config.points is not None
        x = 2.0 * sobol(config.points, config.seed) - 1.0
        super().__init__(config, (x, wavy(x)[:, None]), f"generated:regression:{config.points}")
        line = torch.linspace(-1.0, 1.0, 101, dtype=torch.float64)
        grid = torch.cartesian_prod(line, line)
        self.grid, self.exact = self.on_device(grid), wavy(grid).to(config.device)

    def build(self) -> nn.Module:
        c = self.config
        assert c.layers is not None
        assert c.hidden is not None
        return OneNumber(ScaledNetwork(c.layers, c.hidden, (-1.0, -1.0), (1.0, 1.0)))

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        return relative_error(model(self.grid)[0][:, 0], self.exact)


class Factors(nn.Module):
    """(i, j) → u_i · v_j."""

    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.zeros(rows, rank))
        self.right = nn.Parameter(torch.zeros(columns, rank))

    def forward(self, x: Tensor, hidden: Hidden = None) -> tuple[Tensor, None]:
        return (self.left[x[:, 0]] * self.right[x[:, 1]]).sum(1, keepdim=True), None


class Factorisation(WholeBatch):
    """A 200 × 150 matrix of rank 5, of which ``points`` entries are known; the error is that of the others."""

    unit = "mean squared error of the known entries"

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        assert config.points is not None
        if not config.points < ROWS * COLUMNS:
            raise UserError(
                f"points must be less than {ROWS * COLUMNS}, all entries of the matrix, got {config.points}"
            )
        generator = torch.Generator().manual_seed(104_729 + config.seed)
        left, right = (
            torch.randn(size, RANK, generator=generator, dtype=torch.float64) / math.sqrt(RANK)
            for size in (ROWS, COLUMNS)
        )
        entries, matrix = torch.cartesian_prod(torch.arange(ROWS), torch.arange(COLUMNS)), (left @ right.T).flatten()
        order = torch.randperm(len(entries), generator=generator)
        known, others = order[: config.points], order[config.points :]
        batch = (entries[known], matrix[known][:, None])
        super().__init__(config, batch, f"generated:factorisation:{config.points}")
        self.others, self.exact = entries[others].to(config.device), matrix[others].to(config.device)

    def build(self) -> nn.Module:
        assert self.config.hidden is not None
        return Factors(ROWS, COLUMNS, self.config.hidden)

    def initialise(self, model: nn.Module, generator: torch.Generator) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[1]))

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        return relative_error(model(self.others)[0][:, 0], self.exact)


FITS: dict[str, Callable[[RunConfig, Path | None], WholeBatch]] = {
    "autoencoder": Autoencoder,
    "digits": Classes,
    "regression": Regression,
    "factorisation": Factorisation,
}
