"""Shared by the examples of torch's own tools: a problem, and checkpoints of objects with a ``state_dict``."""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 120


def parser(example: str, about: str | None) -> argparse.ArgumentParser:
    """The argument parser of an example, which takes a folder."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"examples-output/{Path(example).stem}"
    about_folder = "folder for the checkpoint; if there is one, the run resumes from it (default: %(default)s)"
    made.add_argument("folder", nargs="?", default=default, help=about_folder)
    return made


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """A model, and the inputs and targets of its training split."""
    torch.manual_seed(0)
    inputs = torch.randn(640, 20)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    return model, inputs, torch.sin(inputs.sum(1, keepdim=True))


def batch_of(step: int, inputs: Tensor, targets: Tensor, size: int = 32) -> tuple[Tensor, Tensor]:
    """The batch depends only on the step, so a resumed run sees the same batches."""
    chosen = torch.randint(len(inputs), (size,), generator=torch.Generator().manual_seed(step))
    return inputs[chosen], targets[chosen]


def resume(folder: str, **parts: Any) -> int:
    """Load every part from a checkpoint, if there is one, and return the next step."""
    path = Path(folder, "checkpoint.pt")
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["random"])  # for dropout
    print(f"resumed after {saved['step']} of {STEPS} steps from {path}: delete it to start over")
    return int(saved["step"])


def save(folder: str, step: int, loss: Tensor, **parts: Any) -> None:
    """Every 10 steps; the file is replaced as a whole, so a kill never leaves half a checkpoint."""
    if step % 10 != 9:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    state = {name: part.state_dict() for name, part in parts.items()}
    path = Path(folder, "checkpoint.pt")
    torch.save({**state, "random": torch.get_rng_state(), "step": step + 1}, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    print(f"step {step}: loss {loss.item()!r}", flush=True)
