"""AdaQN under FSDP2 (fully_shard), with checkpoints that any number of processes can resume.

torchrun --nproc-per-node 2 examples/fsdp2.py [folder] [--steps 200]

Without torchrun it runs in one process.

After a kill it resumes from the last checkpoint, also with a different number of processes.
"""

import argparse
import hashlib
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
SUMS = "SHA256SUMS"
"""Checksums of a checkpoint: torch.distributed.checkpoint has none, and would silently load a flipped bit."""


def join() -> None:
    """Join the processes that torchrun has started, or run as one process."""
    if "RANK" in os.environ:
        dist.init_process_group()  # gloo without GPUs, NCCL with them
    else:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)


def checksums(checkpoint: Path) -> str:
    """In the format of sha256sum: ``sha256sum -c SHA256SUMS`` checks them."""
    files = sorted(path for path in checkpoint.iterdir() if SUMS not in path.name)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def check(checkpoint: Path) -> None:
    if (checkpoint / SUMS).read_bytes() != checksums(checkpoint).encode():
        raise SystemExit(f"{checkpoint} is damaged: delete it, and the run resumes from the previous checkpoint")


def load_newest(folder: Path, model: nn.Module, opt: AdaQN) -> None:
    complete = [path.parent for path in folder.glob(f"*/{SUMS}") if path.parent.name.isdecimal()]  # written last
    if complete:
        newest = max(complete, key=lambda path: int(path.name))
        check(newest)
        weights, state = get_state_dict(model, opt)
        # H0's matrices belong to the rows of a process. With a different number of processes H0 starts again.
        planner = DefaultLoadPlanner(allow_partial_load=True)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=newest, planner=planner)
        set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)


def save(folder: Path, model: nn.Module, opt: AdaQN) -> None:
    weights, state = get_state_dict(model, opt)
    checkpoint = folder / str(opt.stats.steps)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=checkpoint)
    if dist.get_rank() == 0:  # dcp.save has returned, so the files of all processes are there
        half = checkpoint / f".{SUMS}.tmp"
        half.write_text(checksums(checkpoint))
        half.replace(checkpoint / SUMS)


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

    # After fully_shard, so that the optimizer gets the sharded parameters.
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, batch(0, 64)))
    load_newest(folder, model, opt)
    if dist.get_rank() == 0:
        print(f"processes: {dist.get_world_size()}, starting at step {opt.stats.steps}", flush=True)
    while opt.stats.steps < steps:
        opt.zero_grad()
        x, target = batch(1 + opt.stats.steps, 32)
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        if opt.stats.steps % SAVE_EVERY == 0:
            save(folder, model, opt)
            if dist.get_rank() == 0:
                rejected = opt.stats.rejected
                print(f"step {opt.stats.steps}: loss {loss.item():.4f}, {rejected} cycles rejected", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default="examples-output/fsdp2", help=about)
    parser.add_argument("--steps", type=int, default=200, help="total number of steps (default: %(default)s)")
    main(**vars(parser.parse_args()))
