"""Checkpoints of a Kronecker H0 in shards: bit for bit with as many of them, and with others it begins again."""

import copy

import problem
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from processes import run_processes
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from adaqn import AdaQN, StorageOptions

BEFORE, AFTER, LR = 60, 30, 2e-2
FULL = StateDictOptions(full_state_dict=True)
SENT = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def made(kind):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 10))
    if kind == "fsdp":
        fully_shard(net[0])
        fully_shard(net)
    return net, AdaQN(net.parameters(), LR, reject="none", warm_up=0)


def train(net, opt, start, steps):
    """The loss of the global batch at each step."""
    teacher = torch.randn(20, 10, generator=torch.Generator().manual_seed(5))
    losses = []
    for k in range(start, start + steps):
        x = torch.randn(64, 20, generator=torch.Generator().manual_seed(k))
        x, target = problem.share((x, torch.sin(0.2 * x @ teacher)))
        opt.zero_grad()
        loss = (net(x) - target).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    found = torch.stack(losses)
    if dist.is_initialized():
        dist.all_reduce(found)
        found /= dist.get_world_size()
    return found


def save(folder):
    """Train, save, and go on; returns how it went on, and the whole state when it was saved."""
    net, opt = made("fsdp")
    train(net, opt, 0, BEFORE)
    dcp.save(dict(zip("mo", get_state_dict(net, opt), strict=True)), checkpoint_id=folder)
    whole = copy.deepcopy(get_optimizer_state_dict(net, opt, options=FULL))
    if dist.get_rank() == 0:
        torch.save(whole, folder / "whole.pt")
    return train(net, opt, BEFORE, AFTER)


def load(kind, folder, *, partial=True, whole=None):
    """How a run goes on from the checkpoint; the words by which it was refused, if it was, and nothing has changed."""
    net, opt = made(kind)
    weights, state = get_state_dict(net, opt)
    before = problem.vector(net.parameters())
    try:
        dcp.load(
            {"m": weights, "o": state}, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=partial)
        )
    except (dcp.api.CheckpointException, RuntimeError) as error:
        assert torch.equal(problem.vector(net.parameters()), before)
        return str(error)
    set_state_dict(net, opt, model_state_dict=weights, optim_state_dict=state)
    if whole is not None:
        given = torch.load(folder / "whole.pt") if whole is FULL or dist.get_rank() == 0 else {}
        set_optimizer_state_dict(net, opt, given, options=whole)
    assert opt.stats.steps == BEFORE
    return train(net, opt, BEFORE, AFTER)


def as_before(folder):
    """In each way in which a state can be loaded, by as many processes as have saved it."""
    return [load("fsdp", folder, partial=False), *(load("fsdp", folder, whole=whole) for whole in (FULL, SENT))]


def otherwise(folder):
    """The same by another number of processes; and what is said if that is not allowed."""
    return [load("fsdp", folder), *(load("fsdp", folder, whole=w) for w in (FULL, SENT))], load(
        "fsdp", folder, partial=False
    )


def afresh():
    """A run whose H0 and history are forgotten in the middle, for comparison."""
    net, opt = made(None)
    train(net, opt, 0, BEFORE)
    return train(net, AdaQN(net.parameters(), LR, reject="none", warm_up=0), BEFORE, AFTER)


def assert_close(losses, expected):
    """In the first ten steps, in which V and the bases are found again, and over all."""
    assert losses[:10].mean() < 1.1 * expected[:10].mean()
    assert losses.mean() < 1.05 * expected.mean()


def assert_others_go_on(folder, uninterrupted, counts):
    for count in counts:
        for found, refused in run_processes(count, otherwise, folder):
            for losses in found:
                assert_close(losses, uninterrupted)
            assert f"scaling_blocks_of_{count}_shards_else_allow_partial_load" in refused
    assert_close(load(None, folder), uninterrupted)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_run_goes_on_with_any_number_of_processes(tmp_path):
    """2 → 2 to the bit; 2 → 1, and one process without FSDP2: blocks begin again, the loss does not."""
    expected = run_processes(2, save, tmp_path)[0]
    assert afresh()[:10].mean() > 1.3 * expected[:10].mean()  # what there is to lose
    for found in run_processes(2, as_before, tmp_path):
        assert all(torch.equal(losses, expected) for losses in found)
    assert_others_go_on(tmp_path, expected, (1,))


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(2, (4,)), (4, (2, 1))])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_run_goes_on_with_more_processes_and_with_fewer(before, after, tmp_path):
    """And with one process without FSDP2."""
    assert_others_go_on(tmp_path, run_processes(before, save, tmp_path)[0], after)


def save_alone(folder):
    net, opt = made(None)
    train(net, opt, 0, BEFORE)
    dcp.save(dict(zip("mo", get_state_dict(net, opt), strict=True)), checkpoint_id=folder)
    return train(net, opt, BEFORE, AFTER)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_run_of_one_process_goes_on_in_shards(tmp_path):
    expected = save_alone(tmp_path)
    for losses in run_processes(2, load, "fsdp", tmp_path):
        assert_close(losses, expected)


def begun_again(*, sharded=False):
    """What came out of shards and has its second moments in its own coordinates; nothing was seen since."""
    net, opt = made("fsdp")
    train(net, opt, 0, 12)
    state = copy.deepcopy(get_optimizer_state_dict(net, opt, options=FULL))
    alone, ours = without_shards(sharded)
    set_optimizer_state_dict(alone, ours, state, options=FULL)
    return alone, ours


def without_shards(sharded):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 10))
    return net, AdaQN(net.parameters(), LR, reject="none", storage=StorageOptions(shard_history=sharded))


def step_with(net, opt, number):
    """A step whose gradients are all that number."""
    for p in net.parameters():
        p.grad = torch.full_like(p, number)
    opt.step()


def moments(net, opt):
    return [opt.state[p]["scaling_square_avg"].clone() for p in net.parameters()]


def saved_again(gradients, sharded):
    """Is all of a state that began again as it was after it was saved and loaded, and does it go on like that?"""
    net, opt = begun_again(sharded=sharded)
    for number in gradients:
        step_with(net, opt, number)
    other, ours = without_shards(sharded)
    other.load_state_dict(net.state_dict())
    ours.load_state_dict(copy.deepcopy(opt.state_dict()))
    before, after = moments(net, opt), moments(other, ours)
    assert before[0].std() > 0.0
    assert all(map(torch.equal, after, before))
    seen = [[s[p]["scaling_seen"] for p in range(4)] for s in (o.state_dict()["state"] for o in (opt, ours))]
    assert seen[0] == seen[1]
    return torch.equal(train(net, opt, 12, 12), train(other, ours, 12, 12))


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "dealt"])
@pytest.mark.parametrize("gradients", [(), (0.0,), (0.0, torch.nan, 0.0)], ids=["none", "zero", "not finite"])
def test_a_state_that_began_again_is_saved_before_it_has_learnt_anything(gradients, sharded):
    assert run_processes(1, saved_again, gradients, sharded) == [True]


def frozen_again():
    """Second moments that began again, before and after another parameter was frozen."""
    net, opt = begun_again()
    before = moments(net, opt)
    net[2].bias.requires_grad_(False)
    net[2].bias.grad = None
    for p in list(net.parameters())[1:3]:
        p.grad = torch.ones_like(p)
    with pytest.warns(UserWarning, match="restarts"):
        opt.step()
    return before[0], moments(nn.ParameterList([net[0].weight]), opt)[0]


def test_a_state_that_began_again_stays_when_a_parameter_is_frozen():
    ((before, after),) = run_processes(1, frozen_again)
    assert before.std() > 0.0
    assert torch.equal(after, before)
