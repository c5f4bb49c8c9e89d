"""Seconds per evaluation of adaqn.LBFGS, beside torch.optim.LBFGS: the same network, points and number of pairs.

    python benchmarks/whole_gradients.py [--layers 4] [--width 40] [--points 2000] [--pairs 50] [--rounds 8]

A physics-informed network for Burgers' equation. Both fill their memory first; then they take turns, so that what else
the machine does hits both. The ratio is that of the medians over the rounds. With one thread the time is the
processor's, which other work disturbs less; with more it is the clock's.
"""

import argparse
import json
import math
import statistics
import time
from itertools import pairwise

import torch
from torch import nn

import adaqn

VISCOSITY = 0.01 / math.pi


def network(layers, width):
    torch.manual_seed(0)
    sizes = [2, *[width] * layers, 1]
    modules = []
    for before, behind in pairwise(sizes):
        modules += [nn.Linear(before, behind), nn.Tanh()]
    return nn.Sequential(*modules[:-1])


class Trained:
    """A network and its optimizer; counts evaluations and what they take."""

    def __init__(self, make, layers, width, points):
        self.net = network(layers, width)
        self.optimizer = make(self.net.parameters())
        generator = torch.Generator().manual_seed(0)
        self.inside = torch.rand(points, 2, generator=generator) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
        self.inside.requires_grad_()
        x = torch.linspace(-1, 1, 100)[:, None]
        self.first, self.values = torch.cat([x, torch.zeros_like(x)], 1), -torch.sin(math.pi * x)
        self.evaluations, self.seconds = 0, 0.0

    def closure(self):
        self.evaluations += 1
        self.optimizer.zero_grad()
        u = self.net(self.inside)
        slopes = torch.autograd.grad(u.sum(), self.inside, create_graph=True)[0]
        second = torch.autograd.grad(slopes[:, 0].sum(), self.inside, create_graph=True)[0][:, 0]
        residual = slopes[:, 1] + u[:, 0] * slopes[:, 0] - VISCOSITY * second
        loss = residual.square().mean() + (self.net(self.first) - self.values).square().mean()
        loss.backward()
        return loss

    def advance(self, iterations):
        for group in self.optimizer.param_groups:
            group["max_iter"], group["max_eval"] = iterations, 2 * iterations
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        before = clock()
        self.optimizer.step(self.closure)
        self.seconds += clock() - before

    def per_evaluation(self, iterations):
        """Seconds per evaluation over so many iterations."""
        self.evaluations, self.seconds = 0, 0.0
        self.advance(iterations)
        return self.seconds / self.evaluations


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=40)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=20, help="per round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scaling", default="kronecker_secant")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    common = {"history_size": asked.pairs, "tolerance_grad": 0, "tolerance_change": 0}
    kinds = {
        "torch": lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe", **common),
        "adaqn": lambda p: adaqn.LBFGS(p, scaling=asked.scaling, **common),
    }
    trained = {name: Trained(make, asked.layers, asked.width, asked.points) for name, make in kinds.items()}
    for one in trained.values():
        one.advance(asked.pairs + 2)
    seconds = {name: [] for name in trained}
    for _ in range(asked.rounds):
        for name, one in trained.items():
            seconds[name].append(one.per_evaluation(asked.iterations))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    print(json.dumps({"milliseconds per evaluation": {name: round(1e3 * found, 2) for name, found in medians.items()},
                      "ratio": round(medians["adaqn"] / medians["torch"], 3), **vars(asked)}))  # fmt: skip


if __name__ == "__main__":
    main()
