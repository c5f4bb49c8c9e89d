"""What the Kronecker H0 costs per step, beside SOAP with the same refresh interval.

    python benchmarks/scaling_cost.py                   # a few minutes on a quiet machine
    python benchmarks/scaling_cost.py --threads 2 --models rnn lstm

ms per step of the optimizer alone, with gradients that are there already, in turns of ``refresh`` steps:

- ``soap``: ``step()`` of pytorch_optimizer's SOAP (needs the extra ``oracles``).
- ``step``: ``step()`` of AdaQN as it comes, but without a monitor (``reject="none"``): pairs are built and used.
- ``h0``: the updates and applications of its H0 alone, on vectors.
- ``bare``: the products and QR decompositions that H0 needs, on matrices that are there already, one by one.

``step/soap`` and ``h0/soap`` are medians of ratios within a turn. ``worst`` is the longest step of H0, the first ones
with their eigendecompositions among them, in units of the median one. ``ops`` are the operations that one step of H0
dispatches, without and with the bases that are due. With one thread the time is the processor's, which other work on
the machine disturbs less; with more it is the clock's. No timing is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adaqn import AdaQN, Kronecker
from adaqn.core.blocks import blocks_of
from adaqn.core.eigenbasis import matrix_shape
from adaqn.parameters.buffers import tensor_buffer, tensor_layout, tensors_by_parameter
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.processes import processes_for

REFRESH = 5
GOALS = {"rnn": 0.7, "lstm": 0.7, "feed-forward": 0.7, "transformer-96": 0.7, "transformer-256": 0.9}


def transformer(width: int, layers: int, vocabulary: int) -> nn.Module:
    block = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    return nn.ModuleList(
        [nn.Embedding(vocabulary, width), nn.TransformerEncoder(block, layers), nn.Linear(width, vocabulary)]
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: nn.ModuleList([nn.Embedding(84, 100), nn.RNN(100, 100, 5), nn.Linear(100, 84)]),
    "lstm": lambda: nn.ModuleList([nn.Embedding(84, 100), nn.LSTM(100, 100, 2), nn.Linear(100, 84)]),
    "feed-forward": lambda: nn.Sequential(
        nn.Linear(784, 100),
        nn.Tanh(),
        *(m for _ in range(4) for m in (nn.Linear(100, 100), nn.Tanh())),
        nn.Linear(100, 10),
    ),
    "transformer-96": lambda: transformer(96, 4, 84),
    "transformer-256": lambda: transformer(256, 6, 84),
}


class Operations(TorchDispatchMode):
    """Counts what is dispatched."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def built(params: list[Tensor], scaling: Kronecker) -> Kronecker:
    """A scaling with the memory that an optimizer would give it."""
    flat = FlatParameters(params, processes_for(None, params[0].device))
    plan = tensor_layout(scaling, flat.shapes)
    buffers = {name: tensor_buffer(shapes, flat) for name, shapes in plan.items()}
    entries = tensors_by_parameter(buffers, plan, len(params))
    kept = [{name.removeprefix("scaling_"): tensor for name, tensor in entry.items()} for entry in entries]
    scaling.build({name: flat.new() for name in scaling.vector_names}, flat.shapes, kept)
    return scaling


def bare(params: list[Tensor], block_size: int) -> Callable[[], None]:
    """One step of the products and its share of the QR decompositions, and nothing else."""
    blocks = [block for p in params if p.dim() > 1 for block in blocks_of(matrix_shape(p.shape), block_size)]
    stock = [(torch.randn(b.shape), *(_side(n) for n in b.sides)) for b in blocks]
    step = 0

    def run() -> None:
        nonlocal step
        for index, (G, *both) in enumerate(stock):
            left, right = both
            for _ in range(3):  # the gradient into the basis; what is multiplied by H0 into it, and out of it
                x = G if left is None else left[1] @ G
                x = x if right is None else x @ right[1]
            for number, side in enumerate(both):
                if side is not None:
                    average, basis = side
                    average.addmm_(*((G, G.t()) if number == 0 else (G.t(), G)), beta=0.95, alpha=0.05)
                    if (2 * index + number + step) % REFRESH == 0:
                        torch.linalg.qr(average @ basis)
        step += 1

    return run


def _side(n: int) -> tuple[Tensor, Tensor] | None:
    """An average and a basis, where a side has one."""
    return None if n == 1 else (torch.zeros(n, n), torch.linalg.qr(torch.randn(n, n)).Q)


def timed(run: Callable[[], Any], count: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count


def worst_of(scaling: Kronecker, g: Tensor, out: Tensor, steps: int) -> float:
    """The longest step from the first on, in units of the median; of three runs the least, for other work disturbs."""
    found = []
    for _ in range(3):
        scaling.reset()
        times = [timed(lambda: (scaling.update(g), scaling.apply(g, out)), 1) for _ in range(steps)]
        found.append(max(times[1:]) / statistics.median(times))
    return min(found)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Median seconds of each contender, and ratios."""
    from pytorch_optimizer import SOAP

    def params() -> list[Tensor]:
        torch.manual_seed(0)
        found = list(MODELS[name]().parameters())
        for p in found:
            p.grad = torch.randn_like(p)
        return found

    soap = SOAP(params(), lr=1e-4, precondition_frequency=REFRESH)
    adaqn = AdaQN(params(), lr=1e-4, reject="none", scaling=Kronecker(refresh=REFRESH))
    scaling = built(params(), Kronecker(refresh=REFRESH))
    n = sum(scaling.sizes)
    g, out = torch.randn(n), torch.empty(n)
    contenders: dict[str, Callable[[], Any]] = {
        "soap": soap.step,
        "step": adaqn.step,
        "h0": lambda: (scaling.update(g), scaling.apply(g, out)),
        "bare": bare(params(), scaling.block_size),
    }
    for run in contenders.values():
        timed(run, 4 * REFRESH)
    turns = [{name: timed(run, REFRESH) for name, run in contenders.items()} for _ in range(rounds)]
    counts = []
    for _ in range(REFRESH):
        with Operations() as operations:
            contenders["h0"]()
        counts.append(operations.count)
    never = built(params(), Kronecker(refresh=10**6))
    for _ in range(30):
        never.update(g)
    with Operations() as operations:
        never.update(g)
        never.apply(g, out)
    return {
        "n": n,
        **{key: statistics.median(turn[key] for turn in turns) for key in contenders},
        **{f"{key}/soap": statistics.median(turn[key] / turn["soap"] for turn in turns) for key in ("step", "h0")},
        "worst": worst_of(scaling, g, out, 10 * REFRESH),
        "ops": f"{operations.count}/{max(counts)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="torch threads (default: 1 and 2)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    args = parser.parse_args()
    for threads in args.threads:
        torch.set_num_threads(threads)
        print(
            f"\ntorch {torch.__version__}, threads: {threads}, refresh: {REFRESH}, load: {os.getloadavg()[0]:.1f}; ms"
        )
        print(
            f"{'':16}{'parameters':>11}{'soap':>9}{'step':>9}{'h0':>9}{'bare':>9}{'step/soap':>11}{'goal':>6}{'h0/soap':>9}"
            f"{'worst':>7}{'ops':>10}"
        )
        for name in args.models:
            r = measure(name, args.rounds)
            times = "".join(f"{1e3 * r[key]:9.2f}" for key in ("soap", "step", "h0", "bare"))
            ratios = f"{r['step/soap']:11.2f}{GOALS[name]:6.1f}{r['h0/soap']:9.2f}{r['worst']:7.1f}{r['ops']:>10}"
            print(f"{name:16}{r['n']:11,}{times}{ratios}", flush=True)


if __name__ == "__main__":
    main()
