"""AdaQN in a plain PyTorch loop that may be killed at any moment and restarted.

python examples/plain.py [folder]
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adaqn import AdaQN, Monitor
from adaqn.integrations import training_batch

EPOCHS = 12


def main(folder: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(640, 20)
    data = TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))
    order = torch.Generator()  # seeded per epoch, so that a resumed epoch has the same order
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=order)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    loss_fn = nn.MSELoss()

    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, training_batch(loader)))
    start = 0
    path = Path(folder, "checkpoint.pt")
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])  # for dropout
        start = saved["epoch"]
        print(f"resumed after {start} of {EPOCHS} epochs from {path}: delete it to start over")
    path.parent.mkdir(parents=True, exist_ok=True)

    for epoch in range(start, EPOCHS):
        order.manual_seed(epoch)
        for x, target in loader:
            opt.zero_grad()
            loss = loss_fn(model(x), target)
            loss.backward()
            opt.step()
        state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "random": torch.get_rng_state()}
        torch.save({**state, "epoch": epoch + 1}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # atomic: a kill never leaves half a checkpoint
        print(f"epoch {epoch}: loss {loss.item()!r}, {opt.stats.rejected} cycles rejected", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="examples-output/plain", help=about)
    main(parser.parse_args().folder)
