"""A small regression for Lightning, in one process or several."""

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adaqn import AdaQN


class Regression(LightningModule):
    def __init__(self, make=AdaQN):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.make = make

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, target = batch
        return nn.functional.mse_loss(self(x), target)

    def configure_optimizers(self):
        return self.make(self.parameters())


def loader(**options):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(256, 6, generator=generator)
    return DataLoader(TensorDataset(x, torch.sin(x.sum(1, keepdim=True))), batch_size=16, **options)
