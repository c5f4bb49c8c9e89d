"""What one step costs, beside the least it could cost and beside what else one could run.

    python benchmarks/step_cost.py                 # six minutes and 13 GB on a quiet machine
    python benchmarks/step_cost.py --quick         # one minute, without n = 10⁷
    python benchmarks/step_cost.py --operations    # seconds: how many operations a step dispatches, no timing

The floor is the time to move what a step must touch, (4m + 2·m_F/L + 8)·n elements, at the read bandwidth
of this machine. Everything in a table was measured in turns within one run, and medians are shown: on a shared
machine only such a side-by-side means anything. No timing is asserted.

Two threads that wait for each other lose a whole time slice whenever other work takes one of their cores. Where
the load average is not near zero, figures that repeat need ``OMP_PROC_BIND=close OMP_PLACES=cores`` in the
environment and a higher priority (Linux, as root: ``chrt -f 5 python benchmarks/step_cost.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adaqn import AdaQN, Kronecker, Monitor, PairOptions, RejectOptions, StorageOptions
from adaqn.core.direction import Direction, gram, two_loop
from textbook import Textbook

M, M_F, L = 10, 100, 5  # the paper's memory_size, fisher_size and cycle_length
WARM_UP = M_F // L + M + 2  # cycles until F̃ and the pairs are full
SHARES = (0.4, 0.3, 0.15, 0.1, 0.04, 0.01)  # the parameters: six tensors of these shares of n
ADAQN, TWO_LOOP, TEXTBOOK = "AdaQN", "AdaQN, direction='two_loop'", "textbook two-loop"
READ = "read"
Table = dict[str, float]


def in_turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> Table:
    """Median seconds of each: one call each per round, so that a slow moment of the machine meets them all."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def floor_bytes(n: int, dtype: torch.dtype) -> float:
    """Of one step, amortised over a cycle: the history at its own width, the other vectors in float32."""
    return ((4 * M + 2 * M_F / L) * dtype.itemsize + 8 * 4) * n


def step_times(n: int, dtype: torch.dtype, rounds: int, per_turn: int, halves: tuple[Tensor, Tensor]) -> Table:
    """Median seconds per step of every contender with full memory, whole cycles timed; and the bandwidth."""
    sizes = [round(share * n) for share in SHARES]
    noise = torch.randn(n + 64 * 2 * M_F)
    pool = cycle([noise[64 * i : 64 * i + n].split(sizes) for i in range(2 * M_F)])  # many gradients, little memory
    lr = 1e-3

    def fresh() -> list[Tensor]:
        return [torch.zeros(size, requires_grad=True) for size in sizes]

    def run(params: list[Tensor], step: Callable[[], Any], count: int = per_turn) -> None:
        for _ in range(count * L):
            for p, g in zip(params, next(pool), strict=True):
                p.grad = g
            step()

    ours, theirs, rivals = fresh(), fresh(), fresh()
    direction = Switch(gram)
    pairs, storage = PairOptions(eps=0.0, direction=direction), StorageOptions(history_dtype=dtype, fisher_dtype=dtype)
    opt = AdaQN(ours, lr, preset="paper", pairs=pairs, reject="none", storage=storage)
    textbook = Textbook(theirs, lr, M, M_F, L, dtype)

    def adaqn(chosen: Direction) -> None:
        direction.chosen = chosen
        run(ours, opt.step)

    contenders: dict[str, Callable[[], Any]] = {
        READ: partial(torch.dot, *halves),
        ADAQN: partial(adaqn, gram),
        TWO_LOOP: partial(adaqn, two_loop),
        TEXTBOOK: partial(run, theirs, textbook.step),
        "torch Adam, fused": partial(run, rivals, torch.optim.Adam(rivals, lr, fused=True).step),
        "torch Adam, foreach": partial(run, rivals, torch.optim.Adam(rivals, lr, foreach=True).step),
        "torch Adagrad, foreach": partial(run, rivals, torch.optim.Adagrad(rivals, lr, foreach=True).step),
    }
    run(ours, opt.step, WARM_UP)
    run(theirs, textbook.step, WARM_UP)
    in_turns(contenders, 1)
    before = opt.stats
    times = in_turns(contenders, rounds)
    if opt.stats.stored - before.stored != opt.stats.cycles - before.cycles or opt.stats.pairs != M:
        raise RuntimeError(f"the memory was not full throughout, so the times mean nothing: {opt.stats}")
    bandwidth = sum(half.nbytes for half in halves) / times.pop(READ)
    per_step = {name: seconds / (per_turn * L) for name, seconds in times.items()}
    return {"bandwidth": bandwidth, "floor": floor_bytes(n, dtype) / bandwidth} | per_step


class Operations(TorchDispatchMode):
    """Counts what is dispatched, views included: each costs the host about the same."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(make: Callable[[list[Tensor]], torch.optim.Optimizer], tensors: int = 20, side: int = 16) -> Table:
    """Per step, over 60 of them with a full memory: the fewest, the median, the most (bases, or the end of a cycle)."""
    params = [torch.randn(side, side, requires_grad=True) for _ in range(tensors)]
    opt, counts = make(params), []
    for _ in range(WARM_UP * L + 60):
        for p in params:
            p.grad = torch.randn(side, side)
        with Operations() as found:
            opt.step()
        counts.append(found.count)
    last = counts[-60:]
    return {"fewest": min(last), "median": statistics.median(last), "most": max(last)}


def print_operations() -> None:
    contenders: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "AdaQN, bases apart": lambda p: AdaQN(p, reject="none", scaling=Kronecker(refresh=1000)),
        "AdaQN": lambda p: AdaQN(p, reject="none"),
        "AdaQN, preset='modern'": lambda p: AdaQN(p, preset="modern", reject="none"),
        "AdaQN, preset='paper'": lambda p: AdaQN(p, preset="paper", reject="none"),
        "torch AdamW, foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    }
    try:
        from pytorch_optimizer import SOAP
    except ImportError:
        print("pytorch_optimizer is not installed: no SOAP")
    else:
        contenders["SOAP of pytorch_optimizer"] = lambda p: SOAP(p, precondition_frequency=5)
    print(f"\noperations per step, 20 tensors of 16 × 16{'':12}{'fewest':>8}{'median':>8}{'most':>8}")
    for name, make in contenders.items():
        print(f"  {name:50}" + "".join(f"{value:8.0f}" for value in operations(make).values()))


class Switch:
    """A direction that is now one and now another: both on one history, for half of the memory."""

    def __init__(self, chosen: Direction) -> None:
        self.chosen = chosen

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.chosen(*args, **kwargs)


class CharacterModel(nn.Module):
    """5 × 100 tanh RNN on an embedding of 84 characters: 118 thousand parameters."""

    def __init__(self, vocabulary: int = 84, width: int = 100) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.RNN(width, width, num_layers=5, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(x))[0]).transpose(1, 2)


class Stopwatch:
    """Calls a function and keeps the seconds spent in it."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.seconds = run, 0.0

    def __call__(self, *args: Any) -> Any:
        start = time.perf_counter()
        result = self.run(*args)
        self.seconds += time.perf_counter() - start
        return result


def rnn_times(rounds: int) -> Table:
    """Median seconds per iteration on batches of 32 × 50, by what they were spent on."""
    model, loss_fn = CharacterModel(), nn.CrossEntropyLoss()
    batches = cycle([(b[:, :-1], b[:, 1:]) for b in torch.randint(84, (64, 32, 51))])
    monitored = torch.randint(84, (128, 51))
    monitor = Stopwatch(Monitor(model, loss_fn, (monitored[:, :-1], monitored[:, 1:])))
    pairs, reject = PairOptions(eps=0.0), RejectOptions(factor=100.0)  # store every pair, reject no cycle
    adaqn = AdaQN(model.parameters(), 1e-3, monitor=monitor, preset="paper", pairs=pairs, reject=reject)
    adam = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    passes = Stopwatch(lambda x, target: loss_fn(model(x), target).backward())
    seen: dict[str, list[float]] = {}

    def one_cycle(name: str, opt: torch.optim.Optimizer) -> None:
        step = Stopwatch(opt.step)
        passes.seconds = monitor.seconds = 0.0
        for _ in range(L):
            opt.zero_grad()
            passes(*next(batches))
            step()
        parts = {"passes": passes.seconds, "step": step.seconds - monitor.seconds, "monitor": monitor.seconds}
        for part, seconds in parts.items():
            seen.setdefault(f"{name} {part}", []).append(seconds / L)

    for _ in range(WARM_UP):
        one_cycle("warm-up", adaqn)
    for _ in range(rounds):
        one_cycle("AdaQN", adaqn)
        one_cycle("Adam", adam)
    if adaqn.stats.pairs != M or adaqn.stats.skipped or adaqn.stats.rejected:
        raise RuntimeError(f"the memory was not full throughout, so the times mean nothing: {adaqn.stats}")
    return {"n": sum(p.numel() for p in model.parameters())} | {k: statistics.median(v) for k, v in seen.items()}


def print_steps(n: int, dtype: str, times: Table) -> None:
    print(f"\nn = {n:.0e}, {dtype} history, {times['bandwidth'] / 1e9:.1f} GB/s in these rounds")
    print(f"  {'':30}{'ms/step':>10}{'× floor':>10}{'ns/element':>12}")
    for name, seconds in times.items():
        if name != "bandwidth":
            print(f"  {name:30}{seconds * 1e3:10.3f}{seconds / times['floor']:10.2f}{seconds / n * 1e9:12.2f}")


def print_linearity(steps: dict[str, Table]) -> None:
    print("\nAdaQN, ns per element and step: constant if time is linear in n (small n runs from the caches)")
    for dtype in ("float32", "bfloat16"):
        found = {int(key.split()[0]): t[ADAQN] for key, t in steps.items() if key.endswith(" " + dtype)}
        print(f"  {dtype:10}" + "".join(f"   n = {n:.0e}: {t / n * 1e9:6.2f}" for n, t in found.items()))


def print_rnn(rnn: Table) -> None:
    passes, step, monitor = (rnn[f"AdaQN {part}"] for part in ("passes", "step", "monitor"))
    adam = rnn["Adam step"]
    rows = (
        ("forward and backward", passes, passes / (passes + step)),
        ("AdaQN step, of an iteration without monitor", step, step / (passes + step)),
        ("monitor, of an iteration with it", monitor, monitor / (passes + step + monitor)),
        ("torch Adam, fused, of its iteration", adam, adam / (rnn["Adam passes"] + adam)),
    )
    print(f"\n5 × 100 tanh RNN, {rnn['n']:,.0f} parameters, batches of 32 × 50, a monitor of 128 × 50 every {L} steps")
    print(f"  {'':46}{'ms':>8}{'share':>8}")
    for name, seconds, share in rows:
        print(f"  {name:46}{seconds * 1e3:8.2f}{share:8.1%}")


def print_targets(steps: dict[str, Table], rnn: Table) -> None:
    """The paper's defaults in float32; on a CPU bfloat16 history saves memory, not time."""
    rows = []
    for n, limit in ((10**6, 1.6), (10**7, 2.0)):
        if t := steps.get(f"{n} float32"):
            rows.append((f"step at n = {n:.0e}: × floor", t[ADAQN] / t["floor"], limit))
    for key, t in steps.items():
        n, dtype = key.split()
        if dtype == "float32":
            slower = t[ADAQN] / min(t[TWO_LOOP], t[TEXTBOOK])
            rows.append((f"step at n = {float(n):.0e}: × faster two-loop", slower, 1.0))
    share = rnn["AdaQN step"] / (rnn["AdaQN step"] + rnn["AdaQN passes"])
    rows.append(("share of the RNN's iteration, %", 100 * share, 6.0))
    print(f"\n{'target':52}{'limit':>8}{'here':>8}")
    for text, value, limit in rows:
        print(f"{text:52}{limit:8.2f}{value:8.2f}  {'met' if value <= limit else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no n = 10⁷")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: 2)")
    parser.add_argument("--json", metavar="FILE", help="store all numbers there")
    parser.add_argument("--operations", action="store_true", help="count operations and time nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.operations:
        print_operations()
        return

    halves = torch.ones(3 << 26), torch.ones(3 << 26)  # 1.5 GiB, written: far more than any cache holds
    read = in_turns({READ: partial(torch.dot, *halves)}, 9)[READ]
    bandwidth = sum(half.nbytes for half in halves) / read
    print(f"torch {torch.__version__}, {args.threads} threads, load average {os.getloadavg()[0]:.1f} at the start")
    print(f"read bandwidth {bandwidth / 1e9:.1f} GB/s: torch.dot over 1.5 GiB of initialised float32, median of 9;")
    print("measured again among the rounds of each table, and each floor is reckoned from its own")
    plan = {10**5: (25, 10), 10**6: (15, 2), 10**7: (5, 1)}  # rounds, cycles per turn
    if args.quick:
        plan = {10**5: (9, 10), 10**6: (5, 1)}
    steps = {}
    for n, (rounds, per_turn) in plan.items():
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            steps[f"{n} {name}"] = step_times(n, dtype, rounds, per_turn, halves)
            print_steps(n, name, steps[f"{n} {name}"])
    rnn = rnn_times(10 if args.quick else 40)
    print_linearity(steps)
    print_rnn(rnn)
    print_targets(steps, rnn)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"threads": args.threads, "bandwidth": bandwidth, "steps": steps, "rnn": rnn}, file, indent=2)


if __name__ == "__main__":
    main()
