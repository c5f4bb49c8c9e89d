"""What AdaQN costs in several processes: collectives and bytes per step, memory per process, time per step.

    python benchmarks/distributed.py [--processes 1 2 4] [--width 512] [--steps 40]

Processes on this machine, on gloo, with one thread each. Bytes are those that a process sends in a ring: 2 (P − 1)/P of
the tensor for an all-reduce, P − 1 times its part for an all-gather, the tensor for a broadcast. Beside it stands what
the gradients take: DDP's all-reduce of n numbers, or FSDP2's two all-gathers and one reduce-scatter. With more
processes than cores the times say nothing.
"""

import argparse
import json
import statistics
import tempfile
import time
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from adaqn import AdaQN, Monitor, StorageOptions

KINDS = {
    "DDP": {},
    "DDP, shard_history": {"storage": StorageOptions(shard_history=True)},
    "DDP, shard_history, Kronecker": {"storage": StorageOptions(shard_history=True), "preset": "kronecker"},
    "FSDP2": {},
    "FSDP2, Kronecker": {"preset": "kronecker"},
}
BATCH = 16


class Traffic:
    """Collectives of the optimizer, counted while it steps."""

    def __init__(self):
        self.calls, self.sent = 0, 0.0

    def __enter__(self):
        self._patch = mock.patch.multiple(
            dist,
            all_reduce=self._counting(dist.all_reduce, 0, lambda count: 2 * (count - 1) / count),
            all_gather=self._counting(dist.all_gather, 1, lambda count: count - 1),
            broadcast=self._counting(dist.broadcast, 0, lambda count: 1),
        )
        self._patch.start()
        return self

    def __exit__(self, *_):
        self._patch.stop()

    def _counting(self, function, position, share):
        def call(*args, **kwargs):
            tensor = args[position]
            self.calls += 1
            self.sent += share(dist.get_world_size()) * tensor.numel() * tensor.element_size()
            return function(*args, **kwargs)

        return call


def measure(rank, count, kind, width, steps, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10))
    n = sum(p.numel() for p in net.parameters())
    if kind.startswith("FSDP2"):
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        wrapped = fully_shard(net)
    else:
        wrapped = DistributedDataParallel(net)
    generator = torch.Generator().manual_seed(rank)
    target = torch.randn(64, 10, generator=generator)
    x = torch.randn(64, width, generator=generator)
    loss_fn = nn.MSELoss()
    options = {"preset": "modern", "cycle_length": 5, "monitor": Monitor(net, loss_fn, (x, target)), **KINDS[kind]}
    opt = AdaQN(net.parameters(), 1e-3, **options)
    ordinary, ends, times = Traffic(), Traffic(), []
    for k in range(20 + steps):
        opt.zero_grad()
        rows = torch.randint(64, (BATCH,), generator=generator)
        loss_fn(wrapped(x[rows]), target[rows]).backward()
        is_end = opt.stats.steps % 5 == 4
        with ends if is_end and k >= 20 else ordinary if k >= 20 else Traffic():
            start = time.perf_counter()
            opt.step()
            if k >= 20:
                times.append((is_end, time.perf_counter() - start))
    cycles = steps // 5
    record = {
        "kind": kind,
        "processes": count,
        "parameters": n,
        "collectives_per_step": ordinary.calls / (steps - cycles),
        "collectives_at_the_end_of_a_cycle": ends.calls / cycles,
        "bytes_per_step": (ordinary.sent + ends.sent) / steps,
        "gradient_bytes_per_step": (3 if kind.startswith("FSDP2") else 2) * (count - 1) / count * 4 * n,
        "state_bytes": opt.state_size(),
        "milliseconds": 1e3 * statistics.median(t for end, t in times if not end),
        "milliseconds_at_the_end_of_a_cycle": 1e3 * statistics.median(t for end, t in times if end),
    }
    sizes = [None] * count
    dist.all_gather_object(sizes, record["state_bytes"])
    record["state_bytes"] = max(sizes)
    if rank == 0:
        print(json.dumps(record), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40, help="a multiple of 5")
    asked = parser.parse_args()
    for kind in asked.kinds:
        for count in asked.processes:
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(measure, (count, kind, asked.width, asked.steps, folder), nprocs=count)


if __name__ == "__main__":
    main()
