"""MNIST's IDX format, read strictly: nothing is allocated on the word of a header."""

from __future__ import annotations

import gzip
import zlib

import torch
from torch import Tensor

from adaqn.experiments.errors import UserError

LARGEST = 512 * 1024 * 1024
"""More than ten times MNIST; a compressed file that unfolds to more is refused."""


def read_idx(content: bytes, dimensions: int, name: str = "IDX file") -> Tensor:
    """Unsigned bytes of shape (count, ...) with so many dimensions; gzip is unpacked.

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
    return data
