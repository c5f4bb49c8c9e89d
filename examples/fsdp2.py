"""AdaQN under FSDP2 (fully_shard), with checkpoints that any number of processes can go on from.

torchrun --nproc-per-node 2 examples/fsdp2.py [folder] [--steps 200]

Without torchrun it runs in one process.

Started again after it was killed, it goes on from the last checkpoint; with another number of processes, too.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from adaqn import AdaQN, Monitor

SAVE_EVERY = 50


def join() -> None:
    """The processes that torchrun has started; without it this one alone."""
    if "RANK" in os.environ:
        dist.init_process_group()  # gloo without GPUs, NCCL with them
    else:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)


def load_newest(folder: Path, model: nn.Module, opt: AdaQN) -> None:
    complete = [path.parent for path in folder.glob("*/.metadata")]  # is written last
    if complete:
        weights, state = get_state_dict(model, opt)
        # H0's matrices are of the rows that a process has. Another number of processes finds none: H0 begins again.
        planner = DefaultLoadPlanner(allow_partial_load=True)
        newest = max(complete, key=lambda path: int(path.name))
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=newest, planner=planner)
        set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)


def save(folder: Path, model: nn.Module, opt: AdaQN) -> None:
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / str(opt.stats.steps))


def main(folder: Path, steps: int) -> None:
    join()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{dist.get_rank() % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    loss_fn = nn.MSELoss()

    def batch(number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        x = torch.randn(size, 20, generator=generator)
        return x.to(device), torch.sin(x.sum(1, keepdim=True)).to(device)

    # After fully_shard, so that the optimizer sees the sharded parameters.
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, batch(0, 64)))
    load_newest(folder, model, opt)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes begin with step {opt.stats.steps}", flush=True)
    while opt.stats.steps < steps:
        opt.zero_grad()
        x, target = batch(1 + opt.stats.steps, 32)
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        if opt.stats.steps % SAVE_EVERY == 0:
            save(folder, model, opt)
            if dist.get_rank() == 0:
                stored = opt.stats.stored
                print(f"step {opt.stats.steps}: loss {loss.item():.4f}, {stored} pairs stored", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "where checkpoints lie; started again, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default="examples-output/fsdp2", help=about)
    parser.add_argument("--steps", type=int, default=200, help="in all (default: %(default)s)")
    main(**vars(parser.parse_args()))
