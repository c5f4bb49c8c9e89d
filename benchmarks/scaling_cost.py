"""What H0 costs per step: Adam's diagonal, the Kronecker scaling, and what its parts take.

    python benchmarks/scaling_cost.py              # half a minute on a quiet machine

For square weights and for those of an LSTM: ms of one update and one application, of one refresh of the bases, and
per step at ``refresh=5``; beside them the passes of a linear layer of that shape on a batch of 1,600 rows (32 × 50).
Medians of calls in turns, as in ``step_cost.py``. No timing is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from adaqn import Adam, Kronecker
from adaqn.core.eigenbasis import next_basis

ROWS = 1600
SHAPES = ((100, 100), (400, 100), (512, 512), (1024, 1024))


def measure(p: int, q: int, rounds: int) -> dict[str, float]:
    """Median seconds of each part."""
    n, g, out = p * q, torch.randn(p * q), torch.empty(p * q)
    adam, kronecker = Adam(), Kronecker(refresh=10**9)
    adam.build({"square_avg": torch.zeros(n)}, [(p, q)])
    shapes = kronecker.tensor_shapes((p, q))
    kronecker.build({"square_avg": torch.zeros(n)}, [(p, q)], [{k: torch.zeros(s) for k, s in shapes.items()}])
    for _ in range(3):
        kronecker.update(torch.randn(n))
    layer, x = nn.Linear(q, p, bias=False), torch.randn(ROWS, q, requires_grad=True)
    kept = kronecker.tensors[0]

    def refresh() -> None:
        for side in ("left", "right"):
            next_basis(kept[f"{side}_average"], kept[f"{side}_basis"])

    parts: dict[str, Callable[[], Any]] = {
        "adam": lambda: (adam.update(g), adam.apply(g, out)),
        "update": lambda: kronecker.update(g),
        "apply": lambda: kronecker.apply(g, out),
        "refresh": refresh,
        "passes": lambda: layer(x).sum().backward(),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds + 1):
        for name, run in parts.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: 2)")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.threads} threads, load average {os.getloadavg()[0]:.1f}; ms")
    print(f"{'p × q':>12}{'adam':>9}{'update':>9}{'apply':>9}{'refresh':>9}{'per step':>10}{'passes':>9}{'GFLOP/s':>9}")
    for p, q in SHAPES:
        t = measure(p, q, args.rounds)
        per_step = t["update"] + t["apply"] + t["refresh"] / 5
        rate = 8 * p * q * (p + q) / (t["update"] + t["apply"]) / 1e9
        columns = [t["adam"], t["update"], t["apply"], t["refresh"]]
        row = "".join(f"{seconds * 1e3:9.3f}" for seconds in columns)
        print(f"{p:>6} × {q:<4}{row}{per_step * 1e3:10.3f}{t['passes'] * 1e3:9.3f}{rate:9.1f}")


if __name__ == "__main__":
    main()
