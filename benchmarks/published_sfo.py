"""SFO beside its authors' own program and tuned rivals, on the demo of the authors' repository.

    python benchmarks/published_sfo.py [--authors sfo.py] [--out experiments/published/sfo.json]

The demo (github.com/Sohl-Dickstein/Sum-of-Functions-Optimizer) is an autoencoder of 100,000 random vectors in 31
minibatches. With ``--authors`` their program runs too, from the same starts.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.baselines import SFO
from adaqn.experiments.training.stepping import take_step
from adaqn.experiments.training.storage import write_json

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


def print_sfo(seeds: int, file: Path | None) -> dict[str, Any]:
    """The losses of every start, and the step sizes that were tried on the first."""
    trials: dict[str, list[dict[str, float]]] = {}
    rows = {"SFO (adaqn)": [trained(seed, partial(SFO, batches=MINIBATCHES)) for seed in range(seeds)]}
    if file is not None:
        rows["SFO (authors)"] = [authors(seed, file) for seed in range(seeds)]
    for name, (make, sizes) in RIVALS.items():
        last = {lr: _finite(trained(0, partial(make, lr=lr))[-1]) for lr in sizes}
        trials[name] = [{"lr": lr, "loss": loss} for lr, loss in last.items()]
        best = min(last, key=lambda lr: last[lr])
        rows[f"{name}, lr {best:g}"] = [trained(seed, partial(make, lr=best)) for seed in range(seeds)]
    print(f"\n| loss after passes | {' | '.join(map(str, PASSES))} |\n|{'---|' * (len(PASSES) + 1)}")
    for name, runs in rows.items():
        means = [statistics.fmean(values) for values in zip(*runs, strict=True)]
        print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return {"passes": PASSES, "losses_by_start": rows, "trials": trials}


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--authors", type=Path, help="sfo.py of the authors' repository")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    said = parser.parse_args()
    torch.set_num_threads(said.threads)
    found = print_sfo(said.seeds, said.authors)
    if said.out is not None:
        command = "python benchmarks/published_sfo.py" + (" --authors sfo.py" if said.authors else "")
        write_json(said.out, {"command": command, **found})


if __name__ == "__main__":
    main()
