"""AdaQN with Accelerate: gradient accumulation, clipping, and checkpoints in the middle of an epoch.

python examples/accelerate_loop.py [folder]
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adaqn import AdaQN, Monitor
from adaqn.integrations import training_batch

EPOCHS, SAVE_EVERY = 8, 10


class Progress:
    """The position in the run, saved with it."""

    batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batches = state["batches"]


def main(folder: str) -> None:
    set_seed(0)
    # A seedable sampler's order depends only on seed and epoch, so a resumed epoch has the same order.
    loading = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=loading)
    inputs = torch.randn(640, 20)
    data = TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    loss_fn, adaqn = nn.MSELoss(), AdaQN(net.parameters())
    # A separate generator: otherwise a loader that resumes in mid-epoch draws from the one that dropout uses.
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator())
    model, opt, loader = accelerator.prepare(net, adaqn, loader)
    batch = [tensor.to(accelerator.device) for tensor in training_batch(loader)]
    adaqn.monitor = Monitor(net, loss_fn, batch)  # the unwrapped model

    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    saved = Path(folder, "checkpoint")
    if saved.exists():
        accelerator.load_state(str(saved.resolve()))
        accelerator.print(f"resumed after {progress.batches} batches from {folder}: delete it to start over")
    for epoch in range(progress.batches // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        done = progress.batches % len(loader)
        for x, target in accelerator.skip_first_batches(loader, done) if done else loader:
            with accelerator.accumulate(model):
                loss = loss_fn(model(x), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()  # steps every second time
                opt.zero_grad()
            progress.batches += 1
            if progress.batches % SAVE_EVERY == 0:
                save(accelerator, Path(folder, f"state-{progress.batches}"), saved)
                accelerator.print(f"step {adaqn.stats.steps}: loss {loss.item()!r}", flush=True)


def save(accelerator: Accelerator, target: Path, link: Path) -> None:
    """Save to a new folder, and move the link to it once it is complete."""
    accelerator.save_state(str(target), safe_serialization=False)
    if accelerator.is_main_process:
        new = link.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(target.name)
        new.replace(link)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="examples-output/accelerate_loop", help=about)
    main(parser.parse_args().folder)
