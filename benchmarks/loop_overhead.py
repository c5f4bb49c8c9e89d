"""What the laboratory's training loop costs beside the model: data, bookkeeping and progress, against a bare loop.

    python benchmarks/loop_overhead.py

Both loops train the paper's 5 × 100 tanh RNN with Adam on the same batches, in turns within one run; the ratio of
the medians counts, not the times. The aim is below 3 %. No timing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from adaqn.experiments.commands.display import progress_bars
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.run import Progress, Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of each loop")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    config = RunConfig(optimizer="adam", threads=given.threads, steps=10**9)
    run, bare = Run(config), Run(config)
    batches = [bare.task.batch(step) for step in range(given.steps)]  # a bare loop has its data at hand
    times: dict[str, list[float]] = {"laboratory": [], "bare": []}
    with progress_bars(["adam"]) as told:
        for step in range(given.steps):
            start = time.perf_counter()
            run.advance()
            told(0, Progress(run.step, given.steps, run._mean_loss() if run.step % 10 == 0 else None))
            times["laboratory"].append(time.perf_counter() - start)
            start = time.perf_counter()
            bare_step(bare, *batches[step])
            times["bare"].append(time.perf_counter() - start)
    ours, theirs = (statistics.median(values[10:]) for values in times.values())
    print(f"laboratory {ours * 1e3:.2f} ms, bare loop {theirs * 1e3:.2f} ms: {ours / theirs - 1:+.1%} (aim: below 3 %)")


def bare_step(run: Run, x: torch.Tensor, target: torch.Tensor) -> None:
    run.optimizer.zero_grad()
    run.task.losses(run.model(x), target).mean().backward()
    run.optimizer.step()


if __name__ == "__main__":
    main()
