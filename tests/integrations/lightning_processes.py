"""Lightning's DDP, started by torchrun: the weights of each process after two epochs, at once or by a checkpoint."""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning_module import Regression, loader
from torch import nn

from adaqn.integrations.lightning import MonitorCallback


def fit(epochs, checkpoint=None):
    module = Regression()
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[MonitorCallback(nn.MSELoss(), examples=32)],
    )  # fmt: skip
    trainer.fit(module, loader(shuffle=True), ckpt_path=checkpoint)
    opt = trainer.optimizers[0]
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    return trainer, {"weights": weights, "cycles": opt.stats.cycles, "monitored": opt.monitor.batch[0]}


def main(folder):
    warnings.simplefilter("ignore")
    _, whole = fit(2)
    trainer, _ = fit(1)
    saved = Path(folder, "half.ckpt")
    trainer.save_checkpoint(saved)
    _, resumed = fit(2, saved)
    torch.save({"whole": whole, "resumed": resumed}, Path(folder, f"rank-{dist.get_rank()}.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
