"""The memory that the optimizer takes, measured, against what ``opt.state_size()`` promises before the first step.

    python benchmarks/memory.py                    # two to three minutes, and 3 GB
    python benchmarks/memory.py --quick            # a tenth of the parameters

Each configuration runs in a process of its own (Linux only). How the number is made trustworthy:

- the same configuration first runs on a small model, so that libraries, thread pools and scratch space are there;
- the parameters, and gradients that are written anew in place before each step, exist before counting begins;
- the kernel's mark of the highest resident size (VmHWM) is then reset, and read again after all rings have been
  filled and one more cycle has ended: pages that were only reserved do not count, temporaries do;
- malloc maps every block of 64 KiB or more on its own and gives it back when freed, so nothing lingers in its heap.

"kept" is what stays resident between steps, "peak" the highest point. The aim is a peak within 2 % of the promise.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from adaqn import AccumulatedFisher, AdaQN, Curvature, EmpiricalFisher, PairOptions, StorageOptions

AIM = 0.02
WIDTH = 1000  # four square layers of that width: 4 million parameters
SMALL = 100  # of the rehearsal
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_ARENA_MAX": "1"}
BF16_HISTORY = StorageOptions(history_dtype=torch.bfloat16, fisher_dtype=torch.bfloat16)


@dataclass(frozen=True)
class Configuration:
    memory_size: int = 10
    fisher_size: int = 100
    storage: StorageOptions = field(default_factory=StorageOptions)
    dtype: torch.dtype = torch.float32
    """Of the model."""
    empirical_fisher: bool = False
    averaged: bool = False


CONFIGURATIONS = {
    "the paper's defaults": Configuration(),
    "bfloat16 pairs and F̃": Configuration(storage=BF16_HISTORY),
    "3 pairs, 50 gradients": Configuration(3, 50),
    "3 pairs, 50 gradients, bfloat16": Configuration(3, 50, BF16_HISTORY),
    "EmpiricalFisher": Configuration(empirical_fisher=True),
    "bfloat16 model, master weights": Configuration(storage=StorageOptions(master_weights=True), dtype=torch.bfloat16),
    "averaged() in use": Configuration(averaged=True),
}


def make_model(width: int, dtype: torch.dtype) -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers).to(dtype)


def per_example_loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(dim=1)


def fill(model: nn.Module, width: int, chosen: Configuration) -> AdaQN:
    """An optimizer that has run until every ring was full, and one cycle more."""
    curvature: Curvature = AccumulatedFisher(chosen.fisher_size)
    if chosen.empirical_fisher:
        batch = torch.randn(8, width), torch.randn(8, width)
        curvature = EmpiricalFisher(model, per_example_loss, [batch])
    pairs = PairOptions(chosen.memory_size, curvature=curvature, eps=0.0)  # every pair is stored
    opt = AdaQN(model.parameters(), 1e-5, preset="paper", pairs=pairs, reject="none", storage=chosen.storage)
    steps = max(chosen.fisher_size, 5 * chosen.memory_size + 5) + 5
    for step in range(steps):
        for p in model.parameters():
            assert p.grad is not None
            p.grad.normal_()
        opt.step()
        if chosen.averaged and step >= 5:
            with opt.averaged():
                pass
    if opt.stats.pairs != chosen.memory_size:
        raise RuntimeError(f"the memory was not full, so the figure means nothing: {opt.stats}")
    return opt


def measure(name: str, width: int) -> dict[str, float]:
    """In a fresh process: bytes promised, kept and at the peak."""
    chosen = CONFIGURATIONS[name]

    def with_gradients(width: int) -> nn.Module:
        model = make_model(width, chosen.dtype)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        return model

    fill(with_gradients(SMALL), SMALL, chosen)
    model = with_gradients(width)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM ← VmRSS
    before = resident("VmRSS")
    opt = fill(model, width, chosen)
    peak, kept = resident("VmHWM") - before, resident("VmRSS") - before
    vector = 4 * sum(p.numel() for p in model.parameters())
    return {"promised": opt.state_size(), "kept": kept, "peak": peak, "vector": vector}


def resident(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])


def in_fresh_process(name: str, width: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, "--width", str(width)]
    result = subprocess.run(command, env={**os.environ, **MALLOC}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the four square layers (default: {WIDTH})")
    parser.add_argument("--quick", action="store_true", help="a tenth of the parameters: fixed costs weigh more")
    parser.add_argument("--json", metavar="FILE", help="store all numbers there")
    parser.add_argument("--measure", choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        sys.exit("this benchmark reads /proc/self, which only Linux has")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # memory, not time: and threads that wait for each other are slow on a busy machine
    if args.measure:
        print(json.dumps(measure(args.measure, args.width)))
        return
    width = round(args.width / 10**0.5) if args.quick else args.width
    print(f"{4 * width * (width + 1):,} parameters; MB; over: peak above promise, in float32 vectors of that length")
    print(f"{'':34}{'promised':>10}{'kept':>10}{'peak':>10}{'peak/promised':>15}{'over':>7}")
    results = {}
    for name in CONFIGURATIONS:
        r = results[name] = in_fresh_process(name, width)
        ratio = r["peak"] / r["promised"]
        sizes = "".join(f"{r[key] / 1e6:10.1f}" for key in ("promised", "kept", "peak"))
        verdict = "met" if abs(ratio - 1.0) <= AIM else "MISSED"
        over = (r["peak"] - r["promised"]) / r["vector"]
        print(f"{name:34}{sizes}{ratio:15.3f}{over:7.2f}  {verdict}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
