"""AdaQN under DistributedDataParallel.

torchrun --nproc-per-node 2 examples/ddp.py [--steps 200]

Without torchrun it runs in one process.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adaqn import AdaQN, Monitor


def join() -> None:
    """Join the processes that torchrun has started, or run as one process."""
    if "RANK" in os.environ:
        dist.init_process_group()  # gloo without GPUs, NCCL with them
    else:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)


def main(steps: int) -> None:
    join()
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    ddp = DistributedDataParallel(model)
    loss_fn = nn.MSELoss()

    generator = torch.Generator().manual_seed(dist.get_rank())  # different examples in every process

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 20, generator=generator)
        return x.to(device), torch.sin(x.sum(1, keepdim=True)).to(device)

    # Each process monitors its own batch; the losses of all are pooled.
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, batch(64)))
    for step in range(steps + 1):
        opt.zero_grad()
        x, target = batch(32)
        loss = loss_fn(ddp(x), target)
        loss.backward()
        opt.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}, {opt.stats.rejected} cycles rejected")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="number of steps (default: %(default)s)")
    main(parser.parse_args().steps)
