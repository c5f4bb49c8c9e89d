"""Hessian-Free on the addition problem, as in Martens and Sutskever (2011): when is it solved?

    python benchmarks/published_hf.py [--length 50] [--iterations 150] [--out experiments/published/hf.json]

A tanh network of 100 units, batches of 1,000 fresh sequences.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.baselines import HessianFree
from adaqn.experiments.problems.tasks import addition_problem
from adaqn.experiments.training.storage import write_json

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


def print_hf(length: int, iterations: int, structural_damping: float) -> list[dict[str, Any]]:
    """What is printed."""
    rows = []
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
            seconds = time.perf_counter() - begun
            print(f"| {iteration} | {error:.5f} | {wrong:.1%} | {seconds:.0f} |", flush=True)
            rows.append({"iteration": iteration, "error": error, "wrong": wrong, "seconds": round(seconds, 1)})
            if wrong < 0.01:
                break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--structural-damping", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    said = parser.parse_args()
    torch.set_num_threads(said.threads)
    rows = print_hf(said.length, said.iterations, said.structural_damping)
    if said.out is not None:
        command = f"python benchmarks/published_hf.py --length {said.length} --threads {said.threads}"
        write_json(said.out, {"command": command, "structural_damping": said.structural_damping, "rows": rows})


if __name__ == "__main__":
    main()
