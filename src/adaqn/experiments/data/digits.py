"""Digits as images: MNIST, or the 8 × 8 digits that scikit-learn carries."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError

LARGEST = 512 * 1024 * 1024
"""More than ten times MNIST; a compressed file that unfolds to more is refused."""


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


# ---------------------------------------------------------------------- MNIST's IDX format, read strictly


def read_idx(content: bytes, dimensions: int, name: str = "IDX file") -> Tensor:
    """Unsigned bytes of shape (count, ...) with so many dimensions; gzip is unpacked.

    Nothing is allocated on the word of a header.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1)
    tensor([7, 9], dtype=torch.uint8)
    """
    data = _unpacked(content, name) if content[:2] == b"\x1f\x8b" else content
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise UserError(f"{name} is truncated: {len(data)} bytes, and its header alone takes {header}")
    if data[:4] != bytes([0, 0, 8, dimensions]):
        raise UserError(
            f"{name} starts with {data[:4].hex()}, not 0000080{dimensions:x}: it does not hold unsigned bytes in "
            f"{dimensions} dimensions"
        )
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    announced = 1
    for size in shape:
        announced *= size
    if announced != len(data) - header:
        raise UserError(f"{name} announces {shape} = {announced} bytes and holds {len(data) - header}")
    if announced == 0:
        raise UserError(f"{name} is empty: its shape is {shape}")
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8).view(shape)


def _unpacked(content: bytes, name: str) -> bytes:
    try:
        stream = zlib.decompressobj(wbits=31)
        data = stream.decompress(content, LARGEST)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{name} is not a readable gzip file: {error}") from error
    if stream.unconsumed_tail:
        raise UserError(f"{name} unfolds to more than {LARGEST} bytes: refused")
    if not stream.eof:
        raise UserError(f"{name} is truncated: its gzip stream does not end")
    if stream.unused_data:  # readers differ in what they make of a second member: it would hide behind the first
        raise UserError(f"{name} has {len(stream.unused_data)} bytes after the end of its gzip stream: refused")
    return data
