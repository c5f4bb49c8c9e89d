"""Digits as images: MNIST, or the 8 × 8 digits that scikit-learn carries."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from adaqn.experiments.data import files
from adaqn.experiments.data.idx import read_idx
from adaqn.experiments.errors import UserError


@dataclass(frozen=True)
class Digits:
    """split → (images in [0, 1] of shape (count, side, side), labels)."""

    name: str
    sha256: str
    splits: dict[str, tuple[Tensor, Tensor]]


def load_digits(data: str, data_dir: Path | None = None, side: int | None = None) -> Digits:
    """``side`` shrinks the images by averaging: 28 to 14 or 7."""
    if data == "embedded":
        return _bundled()
    if data != "mnist":
        raise UserError(f"no digits called {data!r}: give 'embedded' (8 × 8, from scikit-learn) or 'mnist'")
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for file in files.DATA_SETS["mnist"]:
        content = files.read(file, data_dir)
        (images if "images" in file.path else labels).append(
            read_idx(content, 3 if "images" in file.path else 1, file.path)
        )
    for picture, label in zip(images, labels, strict=True):
        if len(picture) != len(label):
            raise UserError(f"MNIST has {len(picture)} images and {len(label)} labels")
    (train, test), (train_labels, test_labels) = images, labels
    pixels = {"train": train[:55_000], "valid": train[55_000:], "test": test}
    answers = {"train": train_labels[:55_000], "valid": train_labels[55_000:], "test": test_labels}
    splits = {split: (_shrunk(pixels[split].float() / 255, side), answers[split].long()) for split in pixels}
    sha256 = hashlib.sha256("".join(file.sha256 for file in files.DATA_SETS["mnist"]).encode()).hexdigest()
    return Digits("mnist", sha256, splits)


def _shrunk(images: Tensor, side: int | None) -> Tensor:
    if side is None or side == images.shape[-1]:
        return images
    if side < 1 or images.shape[-1] % side:
        raise UserError(
            f"images of {images.shape[-1]} × {images.shape[-1]} cannot be shrunk evenly to a side of {side}"
        )
    return avg_pool2d(images[:, None], images.shape[-1] // side)[:, 0]


def _bundled() -> Digits:
    from sklearn.datasets import load_digits as bundled

    source = bundled()
    images = torch.tensor(source.images, dtype=torch.float32) / 16
    labels = torch.tensor(source.target, dtype=torch.long)
    sha256 = hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    first, second = int(0.9 * len(images)), int(0.95 * len(images))
    parts = zip(("train", "valid", "test"), order.tensor_split([first, second]), strict=True)
    return Digits("embedded", sha256, {split: (images[index], labels[index]) for split, index in parts})
