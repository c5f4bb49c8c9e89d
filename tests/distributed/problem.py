"""One problem for any number of processes: the global batch of each step is cut into equal shares."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from adaqn import AdaQN, Monitor, PairOptions, RejectOptions, StorageOptions
from adaqn.core.blocks import blocks_of
from adaqn.core.eigenbasis import matrix_shape
from adaqn.parameters.slices import slice_bounds

BATCH, MONITORED = 16, 64
OPTIONS = {
    "paper": {
        "preset": "paper", "lr": 0.3, "cycle_length": 3, "pairs": PairOptions(memory_size=4, fisher_size=7, eps=2e-2),
    },
    "modern": {
        "preset": "modern", "lr": 0.2, "cycle_length": (2, 4), "pairs": PairOptions(fisher_size=7, eps=0.7),
        "reject": RejectOptions(level=1.0, first_look=0),
    },
    "kronecker": {
        "preset": "kronecker", "lr": 0.1, "cycle_length": 3, "pairs": PairOptions(fisher_size=7, eps=0.6),
        "reject": RejectOptions(level=1.0, first_look=0),
    },
}  # fmt: skip
"""Step sizes and tests such that cycles are stored, skipped and rejected."""
SHARDED = StorageOptions(shard_history=True)


def model(dtype=torch.float64):
    """No square matrices: gradients leave directions open, and rounding must not choose a Kronecker basis there."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 5)).to(dtype)


def data(k, size, dtype=torch.float64):
    """The k-th batch, of all processes together."""
    generator = torch.Generator().manual_seed(100 + k)
    x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    return x.to(dtype), (torch.sin(2.0 * x) + 0.5 * noise).to(dtype)


def share(batch):
    """This process's part of a batch."""
    if not dist.is_initialized():
        return batch
    rank, count = dist.get_rank(), dist.get_world_size()
    return tuple(tensor.chunk(count)[rank] for tensor in batch)


def per_example(output, target):
    return (output - target).square().mean(1)


def whole(p):
    p = p.detach()
    return p.full_tensor() if hasattr(p, "full_tensor") else p


def vector(params):
    return torch.cat([whole(p).reshape(-1).double() for p in params])


def kept(p):
    """What this process has of a parameter now."""
    p = p.detach()
    return (p.to_local() if isinstance(p, DTensor) else p).clone()


def gathered(p, values):
    """What was kept of a parameter after each step, of all processes together: one message instead of one a step."""
    values = torch.stack(values)
    if isinstance(p, DTensor):
        placements = [Shard(each.dim + 1) if each.is_shard() else each for each in p.placements]
        shape = torch.Size([len(values), *p.shape])
        stride = torch.empty(shape, device="meta").stride()
        values = DTensor.from_local(values, p.device_mesh, placements, run_check=False, shape=shape, stride=stride)
    return whole(values).flatten(1).double()


def train(net, opt, steps, *, start=0, poisoned=(), dtype=torch.float64):
    """The weights after each step. ``poisoned`` steps have a gradient that is not a number in the last process."""
    path = []
    params = [p for group in opt.param_groups for p in group["params"]]
    last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
    for k in range(start, start + steps):
        opt.zero_grad()
        x, target = share(data(k, BATCH, dtype))
        loss = per_example(net(x), target).mean()
        if k in poisoned and last:
            loss = loss * math.nan
        loss.backward()
        opt.step()
        path.append([kept(p) for p in params])
    return torch.cat([gathered(p, values) for p, values in zip(params, zip(*path, strict=True), strict=True)], dim=1)


def monitored(net, params, name, **options):
    monitor = Monitor(net, per_example, share(data(-1, MONITORED, options.pop("dtype", torch.float64))))
    return AdaQN(params, monitor=monitor, **{**OPTIONS[name], **options})


def wrapped(net, kind):
    """``net`` for DDP, for FSDP2, or as it is.

    One layer is a unit of its own, and the other belongs to the root, which FSDP2 leaves whole after an evaluation.
    """
    if kind == "ddp":
        return DistributedDataParallel(net)
    if kind == "fsdp":
        fully_shard(net[0])
        return fully_shard(net)
    return net


def row_blocks(kind, count, **options):
    """H0 in one process with the blocks that it has on so many of FSDP2: the rows of each shard on their own."""

    class Rows(kind):
        def blocks(self, shape):
            if len(shape) < 2 or 0 in shape:
                return None
            (rows, columns), found = matrix_shape(shape), []
            for rank in range(count):
                start, stop = slice_bounds(rows, rank, count)
                found += [block.moved(start, 0) for block in blocks_of((stop - start, columns), self.block_size)]
            return found

    return Rows(**options)


def several(kind, names, steps):
    """Runs by their names."""
    return {name: outcomes(kind, name, steps) for name in names}


def outcomes(kind, name, steps=140, storage=None, **options):
    """(path, statistics, how each cycle ended), with gradients that are not finite on the way.

    In so many steps every run has cycles of each kind, which ``assert_same_run`` asks for.
    """
    events = []
    net = wrapped(model(), kind)
    opt = monitored(net, net.parameters(), name, on_cycle=events.append, storage=storage, **options)
    path = train(net, opt, steps, poisoned=(20, 21))
    return path, opt.stats, [(event.outcome.value, event.step) for event in events]


def assert_same_run(found, expected):
    """Every process ran as the others and, but for rounding, as one process did."""
    path, stats, events = expected
    for theirs, their_stats, their_events in found:
        assert torch.equal(theirs, found[0][0])
        assert (their_events, their_stats.pairs) == (events, stats.pairs)
        assert torch.allclose(theirs, path, rtol=0.0, atol=1e-9)
    assert {outcome for outcome, _ in events} == {"started", "stored", "skipped", "rejected"}
    assert stats.nonfinite == found[0][1].nonfinite == 2
