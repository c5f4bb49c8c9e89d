"""DDP with the history shared out: the same numbers, and a share of the memory."""

import problem
import pytest
import torch
import torch.distributed as dist
from counting import counted
from processes import run_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import inside
from adaqn import OLBFGS, AdaQN, Kronecker, PairOptions, Scaling, StorageOptions


def cases(names):
    """With matrices that are one block, and with small blocks, six to a matrix."""
    small = {"scaling": Kronecker(block_size=3)}
    storage = problem.SHARDED if dist.is_initialized() else None
    kind = "ddp" if dist.is_initialized() else None
    options = {"small blocks": ("kronecker", small)}
    runs = [options.get(name, (name, {})) for name in names]
    return [problem.outcomes(kind, name, storage=storage, **given) for name, given in runs]


@pytest.mark.parametrize(
    "count, names",
    [
        (2, ("paper", "kronecker", "small blocks")),
        pytest.param(4, ("modern", "small blocks"), marks=pytest.mark.slow),  # four are in test_checkpoints.py
    ],
)
def test_the_numbers_are_those_of_one_process(count, names):
    for found, expected in zip(zip(*run_processes(count, cases, names), strict=True), cases(names), strict=True):
        problem.assert_same_run(found, expected)


def test_one_process_has_all_of_it():
    expected = problem.outcomes(None, "modern", 60)
    path, stats, _ = problem.outcomes(None, "modern", 60, problem.SHARDED)
    assert stats == expected[1]
    assert torch.allclose(path, expected[0], rtol=0.0, atol=1e-12)


def sizes(**options):
    net = nn.Linear(100, 40)
    ddp = DistributedDataParallel(net)
    pairs = PairOptions(memory_size=3)
    opt = AdaQN(net.parameters(), 0.01, preset="modern", reject="none", pairs=pairs, **options)
    for _ in range(17):
        opt.zero_grad()
        ddp(torch.ones(3, 100)).square().mean().backward()
        opt.step()
    ddp(torch.ones(3, 100)).square().mean().backward()
    with counted() as calls:
        opt.step()
    held = sum(buffer.numel() * buffer.element_size() for buffer in inside.buffers(opt).values())
    return held, opt.state_size(), calls, opt.state[net.weight]["fisher"]


def sharded_sizes():
    held, size, calls, fisher = sizes(storage=problem.SHARDED)
    return held, size, calls, tuple(fisher.shape), tuple(fisher.to_local().shape), str(fisher.placements)


def whole_sizes():
    return sizes()[:3]


def test_memory_is_divided_and_only_the_weights_are_gathered():
    whole, _, none = run_processes(2, whole_sizes)[0]
    assert none == []
    n = 40 * 100 + 40
    for held, size, calls, shape, local_shape, placements in run_processes(2, sharded_sizes):
        assert held == whole / 2
        assert size < whole
        assert calls == [("all_reduce", 8 * 3), ("all_reduce", 8 * 2), ("all_gather", 4 * n // 2)]
        assert shape == (50, 4000)
        assert local_shape == (50, 2000)
        assert placements == "(Shard(dim=1),)"


def saved_and_loaded():
    """As it comes, without pairs: (the weights after eight more steps, and after the same from the saved state)."""

    def made():
        torch.manual_seed(3)
        net = nn.Linear(8, 6)
        return net, DistributedDataParallel(net), AdaQN(net.parameters(), reject="none", storage=problem.SHARDED)

    def advance(ddp, opt, steps):
        for k in steps:
            opt.zero_grad()
            ddp(torch.full((3, 8), 0.1 * k)).square().mean().backward()
            opt.step()

    net, ddp, opt = made()
    advance(ddp, opt, range(7))
    other, other_ddp, other_opt = made()
    other.load_state_dict(net.state_dict())
    other_opt.load_state_dict(opt.state_dict())
    for one in ((ddp, opt), (other_ddp, other_opt)):
        advance(*one, range(7, 15))
    return net.weight.detach(), other.weight.detach()


def test_the_default_without_pairs_is_saved_and_resumed():
    for weights, resumed in run_processes(2, saved_and_loaded):
        assert torch.equal(weights, resumed)


def shares():
    matrices = [nn.Parameter(torch.zeros(3000, 32)), *(nn.Parameter(torch.zeros(32, 32)) for _ in range(88))]
    return AdaQN(matrices, reject="none", storage=problem.SHARDED).state_size()


def test_shares_are_even_but_for_one_of_the_small_blocks():
    """Blocks that are mostly factors count by their factors."""
    one = 4 * (8 * 32 * 32 + 4 * 32 * 32)
    least, most = sorted(run_processes(2, shares))
    assert most - least <= one


class Mixing(Scaling):
    """An H0 of whole matrices that does not say which blocks it has: I + 11ᵀ/n for each parameter."""

    elementwise = False

    def apply(self, v, out):
        parts = [part + part.mean() for part in torch.split(v, self.sizes)]
        return out.copy_(torch.cat(parts))


def runs(scaling):
    """(Bytes announced, bytes held, the collectives of the last step, the weights.)"""
    torch.manual_seed(1)
    net = nn.Linear(100, 40)
    net.bias.requires_grad_(False)
    storage = problem.SHARDED if dist.is_initialized() else None
    pairs = PairOptions(memory_size=3)
    opt = AdaQN(net.parameters(), 0.01, scaling=scaling, reject="none", storage=storage, cycle_length=5, pairs=pairs)
    announced = opt.state_size()
    for k in range(18):
        net.weight.grad = torch.randn(40, 100, generator=torch.Generator().manual_seed(k))
        with counted() as calls:
            opt.step()
    state, held = inside.state(opt), inside.held(opt)
    if dist.is_initialized():
        held += [state.h0.before, state.h0.after] if isinstance(scaling, Mixing) else [state.flat._own]
    held += [] if isinstance(scaling, Mixing) else [state.anchor]  # one more while a pair is damped
    return announced, sum(t.numel() * t.element_size() for t in held), [name for name, _ in calls], net.weight.detach()


def two():
    return runs(Mixing()), runs(Kronecker(block_size=20))


def test_an_h0_of_whole_matrices_gathers_what_it_is_applied_to_and_one_of_blocks_gathers_nothing():
    found = run_processes(2, two)
    for scaling, each, calls in zip(
        (Mixing(), Kronecker(block_size=20)),
        zip(*found, strict=True),
        (["all_reduce", "all_gather", "all_reduce", "all_gather"], ["all_reduce", "all_reduce", "all_gather"]),
        strict=True,
    ):
        _, alone, _, weights = runs(scaling)
        for announced, held, theirs, their_weights in each:
            assert announced == held
            assert theirs == calls
            assert torch.allclose(their_weights, weights, rtol=0.0, atol=1e-5)
            assert isinstance(scaling, Mixing) or held < 0.53 * alone


def several_dtypes(preset):
    torch.manual_seed(1)
    params = [
        nn.Parameter(torch.randn(3, dtype=torch.float64)),
        nn.Parameter(torch.randn(5, dtype=torch.float32)),
        nn.Parameter(torch.randn(2, 3, dtype=torch.complex64)),
        nn.Parameter(torch.randn(7, dtype=torch.float32)),
    ]
    storage = StorageOptions(shard_history=True, history_dtype=torch.bfloat16)
    opt = AdaQN(params, 0.05, preset=preset, reject="none", storage=storage, pairs=PairOptions(memory_size=3))
    for k in range(20):
        for p in params:
            p.grad = p.detach() * (1.0 + 0.1 * k)
        if k == 7:
            params[3].grad = None
        opt.step()
    with opt.averaged():
        average = [p.detach().clone() for p in params]
    return [p.detach() for p in params], average, opt.stats


@pytest.mark.parametrize("preset", ["modern", "kronecker"])
def test_any_parameters(preset):
    weights, average, stats = several_dtypes(preset)
    assert stats.stored > 0
    for their_weights, their_average, their_stats in run_processes(2, several_dtypes, preset):
        assert their_stats == stats
        for ours, theirs in ((weights, their_weights), (average, their_average)):
            assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(ours, theirs, strict=True))


def with_closure(storage):
    net = problem.model()
    ddp = DistributedDataParallel(net) if storage is not None else net
    opt = OLBFGS(net.parameters(), lr=0.1, storage=storage)
    for k in range(20):
        x, target = problem.share(problem.data(k, problem.BATCH))

        def closure(x=x, target=target):
            opt.zero_grad()
            problem.per_example(ddp(x), target).mean().backward()

        opt.step(closure)
    return problem.vector(net.parameters())


@pytest.mark.parametrize("storage", [problem.SHARDED, StorageOptions()], ids=str)
def test_a_method_that_compares_gradients(storage):
    expected = with_closure(None)
    for weights in run_processes(2, with_closure, storage):
        assert torch.allclose(weights, expected, rtol=0.0, atol=1e-9)


def test_what_cannot_be_shared_out_is_refused_by_name():
    turned = nn.Parameter(torch.ones(4, 3).t())
    with pytest.raises(ValueError, match="not contiguous"):
        AdaQN([turned], preset="modern", storage=problem.SHARDED).state_size()
