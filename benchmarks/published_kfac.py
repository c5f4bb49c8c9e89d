"""K-FAC against Nesterov's accelerated gradient on the autoencoder of MNIST, as in Martens and Grosse (2015).

    python benchmarks/published_kfac.py --data-dir DATA [--iterations 300] [--out experiments/published/kfac.json]

The network is 784-1000-500-250-30 and back; batches have 1,000 images.
"""

from __future__ import annotations

import argparse
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaqn.baselines import KFAC
from adaqn.experiments.data.digits import load_digits
from adaqn.experiments.training.storage import write_json

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


def print_kfac(iterations: int, data_dir: Path | None) -> dict[str, Any]:
    """What is printed, and the shorter runs that the step sizes were chosen by."""
    found: dict[str, Any] = {}
    images = load_digits("mnist", data_dir).splits["train"][0].flatten(1)
    print("\n| method | lr | iterations | squared error of an image | seconds |\n|---|---|---|---|---|")
    for method, sizes in KFAC_SIZES.items():
        runs = {lr: train_autoencoder(method, lr, images, max(1, iterations // 3)) for lr in sizes}
        best = min(runs, key=lambda lr: _finite(runs[lr][-1][1]))
        rows = train_autoencoder(method, best, images, iterations)
        for iteration, error, seconds in rows:
            print(f"| {method} | {best:g} | {iteration} | {error:.2f} | {seconds:.0f} |", flush=True)
        found[method] = {
            "lr": best,
            "trials": [{"lr": lr, "error": run[-1][1]} for lr, run in runs.items()],
            "rows": [{"iteration": i, "error": error, "seconds": round(s, 1)} for i, error, s in rows],
        }
    return found


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder that already has MNIST")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    said = parser.parse_args()
    torch.set_num_threads(said.threads)
    found = print_kfac(said.iterations, said.data_dir)
    if said.out is not None:
        command = f"python benchmarks/published_kfac.py --iterations {said.iterations} --threads {said.threads}"
        write_json(said.out, {"command": command, "kfac": KFAC_OPTIONS, "methods": found})


if __name__ == "__main__":
    main()
