"""One gradient of the paper's recurrent networks: the layers of the experiments beside ``nn.RNN``.

    python benchmarks/recurrent.py

Forward and backward of one batch, in turns within one run, on one thread; the ratio of the medians counts, not the
times. No timing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from adaqn.experiments.problems.unrolled import UnrolledRNN
from adaqn.experiments.training.run import subnormals_flushed

SHAPES = {  # inputs, hidden units, layers, batch, steps; is the last output all that counts?
    "characters, 5 × 100": (100, 100, 5, 32, 50, False),
    "words, 5 × 400": (400, 400, 5, 32, 50, False),
    "addition, 200 steps": (2, 100, 1, 64, 200, True),
    "MNIST by pixels, 784 steps": (1, 100, 1, 16, 784, True),
}


def gradient(rnn: UnrolledRNN, layers: type[nn.RNN], x: Tensor, last: bool) -> float:
    """Seconds of one."""
    rnn.zero_grad()
    start = time.perf_counter()
    output = layers.forward(rnn, x)[0]
    (output[:, -1] if last else output).square().mean().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'ms':<28}{'nn.RNN':>10}{'ours':>10}{'ratio':>10}")
    for name, (inputs, hidden, layers, batch, steps, last) in SHAPES.items():
        rnn = UnrolledRNN(inputs, hidden, layers)
        x = torch.randn(batch, steps, inputs, requires_grad=layers > 1)  # behind an embedding
        times: dict[type[nn.RNN], list[float]] = {nn.RNN: [], UnrolledRNN: []}
        with subnormals_flushed():
            for _ in range(given.rounds + 1):
                for kind, taken in times.items():
                    taken.append(gradient(rnn, kind, x, last))
        theirs, ours = (1e3 * statistics.median(taken[1:]) for taken in times.values())
        print(f"{name:<28}{theirs:>10.1f}{ours:>10.1f}{ours / theirs:>10.2f}")


if __name__ == "__main__":
    main()
