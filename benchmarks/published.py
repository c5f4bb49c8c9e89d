"""Published comparisons of SFO, K-FAC and Hessian-Free, repeated as far as their settings are public and small.

    python benchmarks/published.py sfo [--authors sfo.py]
    python benchmarks/published.py kfac --data-dir DATA [--iterations 300]
    python benchmarks/published.py hf [--length 50] [--iterations 150]

``sfo``: the autoencoder of the demo in the authors' repository (github.com/Sohl-Dickstein/Sum-of-Functions-Optimizer),
100,000 random vectors in 31 minibatches. With ``--authors`` their own program runs beside ours from the same start.
``kfac``: the autoencoder of MNIST, 784-1000-500-250-30, on which K-FAC is compared with Nesterov's method; batches of
1,000. ``hf``: the addition problem as in Martens and Sutskever, 100 hidden units, batches of 1,000 fresh sequences.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaqn.baselines import KFAC, SFO, HessianFree
from adaqn.experiments.data.digits import load_digits
from adaqn.experiments.problems.tasks import addition_problem
from adaqn.experiments.training.stepping import take_step

# ---------------------------------------------------------------------- SFO

VISIBLE, HIDDEN, VECTORS, MINIBATCHES = 20, 10, 100_000, 31
PASSES = (1, 2, 5, 10, 21)
"""After which the loss is printed; the demo ends after 21."""
RIVALS: dict[str, tuple[Callable[..., torch.optim.Optimizer], tuple[float, ...]]] = {
    "SGD with momentum": (partial(torch.optim.SGD, momentum=0.9), (0.003, 0.01, 0.03, 0.1, 0.3)),
    "Adagrad": (torch.optim.Adagrad, (0.1, 0.3, 1.0, 3.0, 10.0)),
    "Adam": (torch.optim.Adam, (0.003, 0.01, 0.03, 0.1, 0.3)),
}


class Tied(nn.Module):
    """v̂ = Wᵀ·sigmoid(W·v + b) + c, with the loss of a vector."""

    def __init__(self, start: dict[str, Tensor]) -> None:
        super().__init__()
        self.W, self.b_h, self.b_v = (nn.Parameter(start[name].clone()) for name in ("W", "b_h", "b_v"))

    def forward(self, v: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.W @ v + self.b_h)
        return (self.W.T @ hidden + self.b_v - v).square().sum() / v.shape[1]


def demo(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Minibatches and initial weights."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    vectors = normal(VISIBLE, VECTORS)
    start = {"W": normal(HIDDEN, VISIBLE), "b_h": normal(HIDDEN, 1), "b_v": normal(VISIBLE, 1)}
    return [vectors[:, i::MINIBATCHES].contiguous() for i in range(MINIBATCHES)], start


@torch.no_grad()
def mean_loss(model: nn.Module, batches: list[Tensor]) -> float:
    return statistics.fmean(float(model(batch)) for batch in batches)


def trained(seed: int, make: Callable[[Any], torch.optim.Optimizer]) -> list[float]:
    """The loss after each of ``PASSES``."""
    batches, start = demo(seed)
    model, found = Tied(start), []
    opt = make(model.parameters())
    for evaluation in range(MINIBATCHES * PASSES[-1]):
        index = opt.next_index() if isinstance(opt, SFO) else evaluation % MINIBATCHES

        def forward(batch: Tensor = batches[index]) -> tuple[Tensor, Tensor]:
            loss = model(batch)
            return loss, loss

        take_step(opt, "indexed" if isinstance(opt, SFO) else "plain", forward, index)
        passes, rest = divmod(evaluation + 1, MINIBATCHES)
        if not rest and passes in PASSES:
            found.append(mean_loss(model, batches))
    return found


def authors(seed: int, file: Path) -> list[float]:
    spec = importlib.util.spec_from_file_location("authors_sfo", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    batches, start = demo(seed)
    model = Tied(start)

    def loss_and_gradient(weights: dict[str, Any], batch: Tensor) -> tuple[float, dict[str, Any]]:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.as_tensor(weights[name]))
        model.zero_grad()
        loss = model(batch)
        loss.backward()
        gradient = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
        return float(loss.detach()), gradient

    module.np.random.seed(seed)
    opt = module.SFO(loss_and_gradient, {name: w.numpy().copy() for name, w in start.items()}, batches, display=0)
    found, done = [], 0
    for passes in PASSES:
        weights = opt.optimize(num_passes=passes - done)
        done = passes
        model.load_state_dict({name: torch.as_tensor(weights[name]) for name in start})
        found.append(mean_loss(model, batches))
    return found


def print_sfo(seeds: int, file: Path | None) -> None:
    rows = {"SFO (adaqn)": [trained(seed, partial(SFO, batches=MINIBATCHES)) for seed in range(seeds)]}
    if file is not None:
        rows["SFO (authors)"] = [authors(seed, file) for seed in range(seeds)]
    for name, (make, sizes) in RIVALS.items():
        best = min(sizes, key=lambda lr: _finite(trained(0, partial(make, lr=lr))[-1]))
        rows[f"{name}, lr {best:g}"] = [trained(seed, partial(make, lr=best)) for seed in range(seeds)]
    print(f"\n| loss after passes | {' | '.join(map(str, PASSES))} |\n|{'---|' * (len(PASSES) + 1)}")
    for name, runs in rows.items():
        means = [statistics.fmean(values) for values in zip(*runs, strict=True)]
        print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |")


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


# ---------------------------------------------------------------------- K-FAC

ENCODER = (784, 1000, 500, 250, 30)
KFAC_BATCH = 1_000
KFAC_SIZES = {"K-FAC": (0.03, 0.1, 0.3, 1.0), "NAG": (0.001, 0.003, 0.01, 0.03)}
KFAC_OPTIONS: dict[str, Any] = {"damping": 1.0, "kl_clip": 0.1, "fisher": "sampled"}
"""For a loss that is a sum over 784 pixels."""
SPARSE = 15
"""Incoming weights of a unit that are not zero at the start, as in Martens (2010)."""


def autoencoder() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((*ENCODER, *ENCODER[-2::-1])):
        layer = nn.Linear(inputs, outputs)
        nn.init.zeros_(layer.bias)
        with torch.no_grad():
            layer.weight.zero_()
            for row in layer.weight:
                row[torch.randperm(inputs)[:SPARSE]] = torch.randn(SPARSE)
        layers += [layer, nn.Sigmoid()]
    del layers[2 * len(ENCODER) - 3]  # the code is linear
    return nn.Sequential(*layers[:-1])


def train_autoencoder(method: str, lr: float, images: Tensor, iterations: int) -> list[tuple[int, float, float]]:
    """(Iteration, squared error of an image on the training set, seconds)."""
    model, generator = autoencoder(), torch.Generator().manual_seed(0)
    opt: torch.optim.Optimizer
    if method == "K-FAC":
        opt = KFAC(model, lr=lr, **KFAC_OPTIONS)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.99, nesterov=True)
    found, begun, shown = [], time.perf_counter(), images[:5_000]
    for iteration in range(1, iterations + 1):
        batch = images[torch.randint(len(images), (KFAC_BATCH,), generator=generator)]
        opt.zero_grad()
        logits = model(batch)
        if isinstance(opt, KFAC):
            with opt.sampling():
                drawn = torch.bernoulli(torch.sigmoid(logits.detach()))
                torch.autograd.backward(_cross_entropy(logits, drawn), retain_graph=True)
        torch.autograd.backward(_cross_entropy(logits, batch))
        opt.step()
        if iteration % max(1, iterations // 5) == 0 or iteration == iterations:
            with torch.no_grad():
                error = float((torch.sigmoid(model(shown)) - shown).square().sum(1).mean())
            found.append((iteration, error, time.perf_counter() - begun))
            if not math.isfinite(error):
                break
    return found


def _cross_entropy(logits: Tensor, pixels: Tensor) -> Tensor:
    """Of an image."""
    return binary_cross_entropy_with_logits(logits, pixels, reduction="sum") / len(pixels)


def print_kfac(iterations: int, data_dir: Path | None) -> None:
    images = load_digits("mnist", data_dir).splits["train"][0].flatten(1)
    print("\n| method | lr | iterations | squared error of an image | seconds |\n|---|---|---|---|---|")
    for method, sizes in KFAC_SIZES.items():
        runs = {lr: train_autoencoder(method, lr, images, max(1, iterations // 3)) for lr in sizes}
        best = min(runs, key=lambda lr: _finite(runs[lr][-1][1]))
        for iteration, error, seconds in train_autoencoder(method, best, images, iterations):
            print(f"| {method} | {best:g} | {iteration} | {error:.2f} | {seconds:.0f} |", flush=True)


# ---------------------------------------------------------------------- Hessian-Free

UNITS, HF_BATCH, TESTED = 100, 1_000, 2_000
SOLVED = 0.08
"""An answer that is further off is wrong; at most one in a hundred may be. That is the 0.04 of Hochreiter and
Schmidhuber (1997), whose targets are half as large."""


class Adder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.RNN(2, UNITS, batch_first=True), nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.cells(x)
        return self.out(states[:, -1]), states


def print_hf(length: int, iterations: int, structural_damping: float) -> None:
    print(f"\naddition, {length} steps\n\n| iteration | mean squared error | wrong | seconds |\n|---|---|---|---|")
    torch.manual_seed(0)
    model, begun = Adder(), time.perf_counter()
    opt = HessianFree(model.parameters(), structural_damping=structural_damping)
    tested = addition_problem(TESTED, length, 0)
    for iteration in range(1, iterations + 1):
        x, y = addition_problem(HF_BATCH, length, iteration)

        def closure(x: Tensor = x, y: Tensor = y) -> tuple[Tensor, ...]:
            answers, states = model(x)
            return ((answers[:, 0] - y).square().mean(), answers, states)[: 3 if structural_damping else 2]

        opt.step(closure)
        if iteration % 10 == 0 or iteration == iterations:
            with torch.no_grad():
                off = (model(tested[0])[0][:, 0] - tested[1]).abs()
            error, wrong = float(off.square().mean()), float((off > SOLVED).double().mean())
            print(f"| {iteration} | {error:.5f} | {wrong:.1%} | {time.perf_counter() - begun:.0f} |", flush=True)
            if wrong < 0.01:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("sfo", "kfac", "hf"))
    parser.add_argument("--authors", type=Path, help="sfo.py of the authors' repository")
    parser.add_argument("--data-dir", type=Path, help="folder that already has MNIST")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--structural-damping", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    said = parser.parse_args()
    torch.set_num_threads(said.threads)
    if said.which == "sfo":
        print_sfo(said.seeds, said.authors)
    elif said.which == "kfac":
        print_kfac(said.iterations, said.data_dir)
    else:
        print_hf(said.length, said.iterations, said.structural_damping)


if __name__ == "__main__":
    main()
