"""How many steps and gradients every method needs to reach a target, on four small problems; all tuned alike.

    python benchmarks/convergence.py [--steps 500] [--seeds 3] [--out convergence.json]

Each method tries the same number of step sizes, in equal ratios around its default; the best one, by the mean number
of steps over the seeds, is reported. A gradient is one evaluation of loss and gradient on one batch; a product with a
Hessian or Gauss-Newton matrix counts as two, on a batch k times as large as 2k.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from adaqn import OLBFGS, RES, SQN, AdaQN, HessianProduct, Monitor, SdLBFGS
from adaqn.baselines import KFAC, SFO, HessianFree
from adaqn.experiments.problems.linear_recurrent import LinearRNN
from adaqn.experiments.training.stepping import take_step

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    batches: list[Batch]
    target: float
    layers: bool = True
    """Is the model made of linear layers, as K-FAC needs it?"""

    def everything(self) -> Batch:
        return torch.cat([x for x, _ in self.batches]), torch.cat([y for _, y in self.batches])

    def full_loss(self, model: nn.Module) -> float:
        x, y = self.everything()
        with torch.no_grad():
            return float(self.loss(model(x), y))


def quadratic() -> Problem:
    """Least squares with a Hessian of condition 10⁴; all batches share the minimum."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -2, 30, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64, generator=generator))
    x = torch.randn(640, 30, dtype=torch.float64, generator=generator) * scales @ rotation
    y = x @ torch.randn(30, 1, dtype=torch.float64, generator=generator)
    batches = list(zip(x.split(64), y.split(64), strict=True))
    zero = float(y.square().mean())
    return Problem("quadratic, condition 1e4", lambda: nn.Linear(30, 1, bias=False), nn.MSELoss(), batches, 1e-2 * zero)


def logistic() -> Problem:
    """Breast cancer, standardised: 30 features, some nearly the same."""
    data = load_breast_cancer()
    x = torch.tensor(data.data)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(data.target, dtype=torch.float64)[:, None]
    batches = list(zip(x[:560].split(56), y[:560].split(56), strict=True))
    problem = Problem("logistic regression", lambda: nn.Linear(30, 1), nn.BCEWithLogitsLoss(), batches, 0.0)
    return Problem(problem.name, problem.model, problem.loss, batches, 0.06)


class Rosenbrock(nn.Module):
    """Residuals of Rosenbrock's function in ten dimensions, the same for every example."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([-1.2, 1.0] * 5))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.w[0::2], self.w[1::2]
        residuals = torch.cat([10.0 * (b - a.square()), 1.0 - a])
        return residuals.expand(len(x), -1)


def rosenbrock() -> Problem:
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(320, 10, dtype=torch.float64, generator=generator)
    noise -= noise.mean(0)
    batches = list(zip(torch.zeros(320, 1, dtype=torch.float64).split(32), noise.split(32), strict=True))
    return Problem("Rosenbrock with noise", Rosenbrock, nn.MSELoss(), batches, 0.1, layers=False)


class Memory(nn.Module):
    """A tanh RNN that must tell the mean sign of its first inputs at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.output = LinearRNN(1, 16, 1, "tanh"), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.cells(x)[0][:, -1])


def recurrent() -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 12, 1, dtype=torch.float64, generator=generator)
    y = torch.tanh(x[:, :3].sum(1))
    return Problem("tanh RNN, 12 steps", Memory, nn.MSELoss(), list(zip(x.split(40), y.split(40), strict=True)), 0.15)


@dataclass(frozen=True)
class Method:
    name: str
    make: Callable[[nn.Module, Problem, float], Any]
    lr: float
    step: str = "plain"
    gradients_per_step: Callable[[Any, int], float] = lambda opt, steps: steps


def _monitored(model: nn.Module, problem: Problem) -> Monitor:
    x, y = problem.everything()
    return Monitor(model, problem.loss, (x[:128], y[:128]))


def _sqn(model: nn.Module, problem: Problem, lr: float) -> SQN:
    pairs = [problem.batches[i] for i in range(4)]
    large = (torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    return SQN(model.parameters(), lr, curvature=HessianProduct(model, problem.loss, [large]))


METHODS = [
    Method("SGD", lambda m, p, lr: torch.optim.SGD(m.parameters(), lr), 0.1),
    Method("NAG", lambda m, p, lr: torch.optim.SGD(m.parameters(), lr, momentum=0.9, nesterov=True), 0.03),
    Method("Adagrad", lambda m, p, lr: torch.optim.Adagrad(m.parameters(), lr), 0.1),
    Method("RMSProp", lambda m, p, lr: torch.optim.RMSprop(m.parameters(), lr), 0.01),
    Method("Adam", lambda m, p, lr: torch.optim.Adam(m.parameters(), lr), 0.03),
    Method("AdaQN", lambda m, p, lr: AdaQN(m.parameters(), lr, monitor=_monitored(m, p)), 0.03),
    Method("adaQN (paper)", lambda m, p, lr: AdaQN(m.parameters(), lr, preset="paper", monitor=_monitored(m, p)), 0.03),
    Method("oLBFGS", lambda m, p, lr: OLBFGS(m.parameters(), lr), 0.1, "closure", lambda opt, n: 2 * n),
    Method("RES", lambda m, p, lr: RES(m.parameters(), lr), 0.1, "closure", lambda opt, n: 2 * n),
    Method("SdLBFGS", lambda m, p, lr: SdLBFGS(m.parameters(), lr), 0.1, "closure", lambda opt, n: 2 * n),
    Method("SQN", _sqn, 0.1, gradients_per_step=lambda opt, n: n + 8 * opt.stats.cycles),
    Method("SFO", lambda m, p, lr: SFO(m.parameters(), batches=len(p.batches), lr=lr), 1.0, "indexed",
           lambda opt, n: opt.stats.evaluations),
    Method("Hessian-Free", lambda m, p, lr: HessianFree(m.parameters(), lr=lr), 1.0, "outputs",
           lambda opt, n: opt.stats.evaluations + 2 * opt.stats.cg_iterations),
    Method("K-FAC", lambda m, p, lr: KFAC(m, lr), 0.1),
]  # fmt: skip


def take(method: Method, opt: Any, model: nn.Module, problem: Problem, order: Tensor, k: int) -> None:
    index = opt.next_index() if method.step == "indexed" else int(order[k % len(order)])
    x, target = problem.batches[index]

    def forward() -> tuple[Tensor, Tensor]:
        output = model(x)
        return problem.loss(output, target), output

    take_step(opt, method.step, forward, index)


def steps_to_target(method: Method, problem: Problem, lr: float, seed: int, most: int) -> tuple[float, float]:
    """(steps, gradients), infinite if the target was not reached."""
    torch.manual_seed(seed)
    model = problem.model().double()
    order = torch.randperm(len(problem.batches), generator=torch.Generator().manual_seed(seed))
    opt = method.make(model, problem, lr)
    for k in range(most):
        take(method, opt, model, problem, order, k)
        loss = problem.full_loss(model)
        if loss <= problem.target:
            return k + 1, method.gradients_per_step(opt, k + 1)
        if not math.isfinite(loss):
            break
    return math.inf, math.inf


def best(method: Method, problem: Problem, seeds: int, most: int) -> dict[str, Any]:
    """The step size with the fewest steps, over two decades around the default."""
    if method.name == "K-FAC" and not problem.layers:
        return {"steps": None, "gradients": None, "lr": None}
    rows = []
    for exponent in (-1.0, -0.5, 0.0, 0.5, 1.0):
        lr = method.lr * 10**exponent
        runs = [steps_to_target(method, problem, lr, seed, most) for seed in range(seeds)]
        rows.append((statistics.fmean(s for s, _ in runs), statistics.fmean(g for _, g in runs), lr))
    steps, gradients, lr = min(rows)
    reached = math.isfinite(steps)
    return {"steps": steps if reached else math.inf, "gradients": gradients if reached else math.inf, "lr": lr}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="give up after so many")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default=None, help="also write the numbers as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    problems = [quadratic(), logistic(), rosenbrock(), recurrent()]
    print("| method | " + " | ".join(p.name for p in problems) + " |")
    print("|---|" + "---|" * len(problems))
    table: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        cells = []
        for problem in problems:
            found = best(method, problem, given.seeds, given.steps)
            table.setdefault(method.name, {})[problem.name] = found
            if found["steps"] is None:
                cells.append("–")
            elif math.isinf(found["steps"]):
                cells.append(f"> {given.steps}")
            else:
                cells.append(f"{found['steps']:.0f} / {found['gradients']:.0f} ({found['lr']:.2g})")
        print(f"| {method.name} | " + " | ".join(cells) + " |", flush=True)
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=2)


if __name__ == "__main__":
    main()
