"""Blocks of H0 on several processes: their share of the memory, and parameters of every kind."""

import problem
import torch
import torch.distributed as dist
from processes import run_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import inside
from adaqn import AdaQN, Kronecker
from adaqn.core.blocks import Block
from adaqn.core.eigenbasis import matrix_shape
from adaqn.parameters.slices import slice_bounds

COUNT, VECTORS = 4, 64


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 32))


def optimizer(net, **options):
    return AdaQN(net.parameters(), 1e-3, reject="none", **options)


def sizes():
    """Bytes of state under FSDP2, and with blocks that are dealt out, of one size and of many."""
    found = [optimizer(fully_shard(network())).state_size()]
    for block_size in (16, 2048):
        opt = optimizer(network(), storage=problem.SHARDED, scaling=Kronecker(block_size=block_size))
        found.append(opt.state_size())
    return found


def test_state_is_divided_by_the_number_of_processes():
    shards, small, large = zip(*run_processes(COUNT, sizes), strict=True)
    alone = optimizer(network(), scaling=problem.row_blocks(Kronecker, COUNT)).state_size()
    assert max(shards) <= 1.02 * alone / COUNT
    for found, block_size in ((small, 16), (large, 2048)):
        alone = optimizer(network(), scaling=Kronecker(block_size=block_size)).state_size()
        copy = sum(p.numel() for p in network().parameters()) * 4  # of the weights, in which each moves its own
        p, q = min(96, block_size), min(64, block_size)
        one_block = 4 * (VECTORS * p * q + 2 * (p * p + q * q))
        assert abs(max(found) - (alone + copy) / COUNT) <= one_block
        assert abs(sum(found) - alone - copy) <= 0.01 * alone


class Halves(Kronecker):
    """In one process the blocks that lie on two: halves of the columns of a 5 × 8 matrix, of the rows of all others."""

    def blocks(self, shape):
        if len(shape) < 2 or 0 in shape:
            return None
        p, q = matrix_shape(shape)
        if (p, q) == (5, 8):
            return [Block((0, 5), slice_bounds(8, rank, 2)) for rank in range(2)]
        halves = (slice_bounds(p, rank, 2) for rank in range(2))
        return [Block((start, stop), (0, q)) for start, stop in halves if start < stop]


def kinds(*, interleaved=False):
    """(Weights, bytes announced but not held) with tensors of many kinds, cut in several dimensions, or whole."""
    torch.manual_seed(4)
    given = [(torch.randn(6, 2, 3), 0), (torch.randn(5, 8), 1), (torch.randn(4, 4, dtype=torch.complex64), 0)]
    given += [(torch.randn(1, 4), 0), (torch.randn(7), 0)]  # of the first one process has nothing
    given += [(torch.randn(2, 6, 5), 1)] if interleaved else []  # every other row of a 12 × 5 matrix
    is_whole = not dist.is_initialized()
    mesh = None if is_whole else init_device_mesh("cpu", (dist.get_world_size(),))

    def placed(tensor, dim):
        return tensor.clone() if is_whole else distribute_tensor(tensor, mesh, [Shard(dim)])

    params = [nn.Parameter(placed(tensor, dim)) for tensor, dim in given]
    scaling = Halves() if is_whole else Kronecker()
    opt = AdaQN(params, 0.02, reject="none", cycle_length=3, scaling=scaling)
    for k in range(25):
        for i, (p, (start, dim)) in enumerate(zip(params, given, strict=True)):
            noise = torch.randn(start.shape, dtype=start.dtype, generator=torch.Generator().manual_seed(100 * k + i))
            p.grad = placed(start + 0.3 * noise, dim)
        opt.step()
    held = sum(t.numel() * t.element_size() for t in inside.held(opt))
    return [problem.whole(p) for p in params], opt.state_size() - held


def several():
    return kinds(), kinds(interleaved=True)


def test_tensors_of_any_kind_cut_in_any_dimension():
    expected, _ = kinds()
    (_, (first, _)), (_, (second, _)) = found = run_processes(2, several)
    for (weights, unaccounted), _ in found:
        assert unaccounted == 0
        assert all(torch.allclose(a, b, rtol=0.0, atol=1e-4) for a, b in zip(weights, expected, strict=True))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(first, second, strict=True))
