"""AdaQN under FSDP2 (fully_shard), with a checkpoint that any number of processes can load.

torchrun --nproc-per-node 2 examples/fsdp2.py [checkpoint]
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from adaqn import AdaQN, Monitor


def main(folder: Path) -> None:
    dist.init_process_group()
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

    generator = torch.Generator().manual_seed(dist.get_rank())

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 20, generator=generator)
        return x.to(device), torch.sin(x.sum(1, keepdim=True)).to(device)

    # After fully_shard, so that the optimizer sees the sharded parameters; with an H0 that can be sharded.
    opt = AdaQN(model.parameters(), preset="modern", monitor=Monitor(model, loss_fn, batch(64)))
    if folder.exists():
        weights, state = get_state_dict(model, opt)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
        set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)
    for _ in range(101):
        opt.zero_grad()
        x, target = batch(32)
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        if opt.stats.steps % 50 == 0 and dist.get_rank() == 0:
            print(f"step {opt.stats.steps}: loss {loss.item():.4f}, {opt.stats.stored} pairs stored")
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoint"))
