"""Checkpoints of a Kronecker H0 in shards: bit for bit with as many of them, and with others it begins again."""

import copy

import problem
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
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

from adaqn import AdaQN

BEFORE, AFTER = 60, 50
FULL = StateDictOptions(full_state_dict=True)
SENT = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def made(kind):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 10))
    if kind == "fsdp":
        fully_shard(net[0])
        fully_shard(net)
    return net, AdaQN(net.parameters(), 2e-2, reject="none")


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


def load(kind, folder, *, partial, whole=None):
    """How a run goes on from the checkpoint, or the words by which it was refused."""
    net, opt = made(kind)
    weights, state = get_state_dict(net, opt)
    planner = DefaultLoadPlanner(allow_partial_load=partial)
    try:
        dcp.load({"m": weights, "o": state}, checkpoint_id=folder, planner=planner)
    except (dcp.api.CheckpointException, RuntimeError) as error:
        untouched = opt.stats.steps == 0
        return str(error), untouched
    set_state_dict(net, opt, model_state_dict=weights, optim_state_dict=state)
    if whole is not None:
        given = torch.load(folder / "whole.pt") if whole is FULL or dist.get_rank() == 0 else {}
        set_optimizer_state_dict(net, opt, given, options=whole)
    assert opt.stats.steps == BEFORE
    return train(net, opt, BEFORE, AFTER)
