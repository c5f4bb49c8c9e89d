"""Paths of the methods on Rosenbrock's function, each with the best of thirteen step sizes: rosenbrock.svg.

    python docs/pictures/rosenbrock.py [--steps 300] [--out docs/pictures/rosenbrock.svg]

Beside it goes rosenbrock-phone.svg.

Every gradient has noise, the same for all methods: that of minibatches of 32 residuals. The best step size is the
one that comes first to a loss below 0.01, or else the one with the lowest loss at the end.
"""

from __future__ import annotations

import argparse
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn

from adaqn import OLBFGS, SQN, AdaQN, HessianProduct, Monitor, SdLBFGS
from adaqn.baselines import SFO, HessianFree
from adaqn.experiments.comparison import plots
from adaqn.experiments.comparison.dark import with_dark_mode
from adaqn.experiments.training.stepping import take_step

matplotlib.use("Agg")
from matplotlib import pyplot

TARGET = 0.01
BATCHES = 10


class Rosenbrock(nn.Module):
    """Residuals of (1 − a)² + 100 (b − a²)², the same for every example."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.w
        return torch.stack([1.0 - a, 10.0 * (b - a.square())]).expand(len(x), -1)


def noisy_batches() -> list[tuple[Tensor, Tensor]]:
    noise = 0.1 * torch.randn(32 * BATCHES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise -= noise.mean(0)
    return [(torch.zeros(32, 1), part) for part in noise.split(32)]


def each_loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1)


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return each_loss(output, target).mean()


def everything() -> tuple[Tensor, Tensor]:
    x, target = zip(*noisy_batches(), strict=True)
    return torch.cat(x), torch.cat(target)


@dataclass(frozen=True)
class Method:
    name: str
    make: Callable[[Rosenbrock, float], Any]
    lr: float
    """The middle of its step sizes."""
    step: str = "plain"


def monitor(model: Rosenbrock) -> Monitor:
    return Monitor(model, each_loss, everything())


def sqn(model: Rosenbrock, lr: float) -> SQN:
    return SQN(model.parameters(), lr, curvature=HessianProduct(model, loss_fn, [everything()]))


METHODS = [
    Method("NAG", lambda m, lr: torch.optim.SGD(m.parameters(), lr, momentum=0.9, nesterov=True), 1e-3),
    Method("Adam", lambda m, lr: torch.optim.Adam(m.parameters(), lr), 0.1),
    Method("AdaQN as published", lambda m, lr: AdaQN(m.parameters(), lr, preset="paper", monitor=monitor(m)), 0.05),
    Method("AdaQN", lambda m, lr: AdaQN(m.parameters(), lr, monitor=monitor(m)), 0.05),
    Method("SQN", sqn, 3e-3),
    Method("oLBFGS", lambda m, lr: OLBFGS(m.parameters(), lr), 0.1, "closure"),
    Method("SdLBFGS", lambda m, lr: SdLBFGS(m.parameters(), lr), 0.1, "closure"),
    Method("SFO", lambda m, lr: SFO(m.parameters(), batches=BATCHES, lr=lr), 0.3, "indexed"),
    Method("Hessian-Free", lambda m, lr: HessianFree(m.parameters(), lr=lr), 0.3, "outputs"),
]


@dataclass(frozen=True)
class Walk:
    lr: float
    points: Tensor
    losses: list[float]

    @property
    def arrival(self) -> float:
        """The first step below the target; infinite if there is none."""
        return next((k for k, loss in enumerate(self.losses) if loss < TARGET), math.inf)


def exact_loss(w: Tensor) -> float:
    a, b = w.tolist()
    return (1.0 - a) ** 2 + 100.0 * (b - a * a) ** 2


def walk(method: Method, lr: float, steps: int) -> Walk:
    torch.manual_seed(0)
    model, batches = Rosenbrock(), noisy_batches()
    opt = method.make(model, lr)
    points, losses = [model.w.detach().clone()], [exact_loss(model.w.detach())]
    for k in range(steps):
        index = opt.next_index() if method.step == "indexed" else k % BATCHES
        x, target = batches[index]

        def forward(x: Tensor = x, target: Tensor = target) -> tuple[Tensor, Tensor]:
            output = model(x)
            return loss_fn(output, target), output

        take_step(opt, method.step, forward, index)
        points.append(model.w.detach().clone())
        losses.append(exact_loss(points[-1]))
        if losses[-1] < TARGET or not losses[-1] < 1e6:
            break
    return Walk(lr, torch.stack(points), losses)


def best_path(method: Method, steps: int) -> Walk:
    paths = [walk(method, method.lr * 10 ** (exponent / 4), steps) for exponent in range(-6, 7)]
    return min(paths, key=lambda path: (path.arrival, path.losses[-1]))


def draw(paths: dict[str, Walk], out: Path, columns: int, width: float) -> None:
    """What is many shapes, the valley and the points, becomes an image inside the SVG; lines and names stay sharp."""
    a, b = torch.meshgrid(torch.linspace(-1.7, 1.7, 300), torch.linspace(-0.7, 1.9, 300), indexing="xy")
    height = ((1.0 - a) ** 2 + 100.0 * (b - a * a) ** 2).log10()
    rows = math.ceil(len(paths) / columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width, 0.9 * width * rows / columns), sharex=True, sharey=True, layout="constrained",
    )  # fmt: skip
    for axis in axes.flat[len(paths) :]:
        axis.set_visible(False)
    for axis, (name, path) in zip(axes.flat, paths.items(), strict=False):
        axis.contourf(a, b, height, levels=24, cmap="Blues_r", alpha=0.75).set_rasterized(True)
        x, y = path.points.T
        axis.plot(x, y, "o", color="#c2410c", markersize=2, rasterized=True)
        axis.plot(x, y, "-", color="#c2410c", linewidth=1)
        axis.plot(-1.2, 1.0, "o", color="black", markersize=5, rasterized=True)
        axis.plot(1.0, 1.0, "*", color="black", markersize=10, rasterized=True)
        ended = f"{path.arrival} steps" if path.arrival < math.inf else f"{path.losses[-1]:.2g} at the end"
        axis.set_title(f"{name}\n{ended} (lr {path.lr:.2g})", fontsize=9)
        axis.set(xlim=(-1.7, 1.7), ylim=(-0.7, 1.9))
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, dpi=100)
    out.write_text(with_dark_mode(buffer.getvalue(), []), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of each method, at most")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".svg"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    paths = {}
    for method in METHODS:
        paths[method.name] = path = best_path(method, given.steps)
        print(
            f"{method.name:20} lr {path.lr:<8.3g} {path.arrival} steps, loss {path.losses[-1]:.3g} at the end",
            flush=True,
        )
    draw(paths, given.out, columns=3, width=10.0)
    draw(paths, plots.for_phone(given.out), columns=2, width=4.6)


if __name__ == "__main__":
    main()
