"""AdaQN in Lightning, with automatic optimization. After a kill it resumes from the last complete epoch.

python examples/lightning_model.py [folder]
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from adaqn import AdaQN
from adaqn.integrations.lightning import MonitorCallback

EPOCHS = 10


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1))
        self.loss_fn = nn.MSELoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, target = batch
        loss = self.loss_fn(self(x), target)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        loss, stats = self.trainer.callback_metrics["loss"].item(), self.optimizers().optimizer.stats
        print(f"epoch {self.current_epoch}: loss {loss!r}, {stats.rejected} cycles rejected", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return AdaQN(self.parameters())


def main(folder: str) -> None:
    seed_everything(0, verbose=False)
    inputs = torch.randn(640, 20)
    data = TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))
    # Lightning saves no random state. This sampler needs none: its order depends on the epoch, which Lightning sets.
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    module = Regression()
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=CSVLogger(folder),
        log_every_n_steps=5,
        gradient_clip_val=1.0,
        callbacks=[MonitorCallback(module.loss_fn), ModelCheckpoint(folder, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = Path(folder, "last.ckpt")
    if last.exists():
        print(f"resuming from {last}: delete {folder} to start over")
    trainer.fit(module, DataLoader(data, batch_size=32, sampler=sampler), ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="examples-output/lightning_model", help=about)
    main(parser.parse_args().folder)
