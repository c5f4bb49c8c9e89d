"""Products of a few long rows with a vector: the only heavy arithmetic of a quasi-Newton step.

Rows of the vector's own dtype go to BLAS in one call, which reads them at memory speed. Rows in
another dtype (bfloat16 history) are widened block by block, so that the wide copy stays in the
cache: memory moves two bytes per element, and nothing of the size of the history is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a small tensor of partial products over all processes; the identity for one process."""

_BLOCK_ON_CPU = 1 << 19  # elements of a widened block: 2 MiB, which stays in the cache
_BLOCK_ELSEWHERE = 1 << 25  # a cache is not the point there: fewer, larger kernels are


def local(partial: Tensor) -> Tensor:
    """The reduction of a single process: nothing to add."""
    return partial


def dots(rows: Tensor, v: Tensor) -> Tensor:
    """rows·v as float64, for ``rows`` of shape (k, n)."""
    if rows.dtype == v.dtype:
        return rows.mv(v).double()
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for block, wide in _widened(rows, v.dtype):
        total += wide.mv(v[block])
    return total


def add_combination(out: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """out ← out + rowsᵀ·weights, in place."""
    weights = weights.to(out.dtype)
    if rows.dtype == out.dtype:
        return out.addmv_(rows.t(), weights)
    for block, wide in _widened(rows, out.dtype):
        out[block].addmv_(wide.t(), weights)
    return out


def size_of(vector: Tensor, reduce: Reduce = local) -> float:
    """A number that is zero exactly if the vector is, and not finite if its square is not; one read from the device."""
    square = _reduced(vector.dot(vector), reduce)
    if square != 0.0:
        return square
    largest = torch.linalg.vector_norm(vector, math.inf) if vector.numel() else vector.new_zeros(())
    return _reduced(largest, reduce)  # the square may have underflowed


def _reduced(value: Tensor, reduce: Reduce) -> float:
    return float(value) if reduce is local else float(reduce(value.double().reshape(1)))


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Copies of small tensors in the memory of the host, by one read from the device of the first."""
    values = torch.cat([t.detach().to(tensors[0].device, torch.float64).reshape(-1) for t in tensors]).tolist()
    pieces = torch.split(torch.tensor(values, dtype=torch.float64), [t.numel() for t in tensors])
    return [piece.to(t.dtype).reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)]


def round_to(dtype: torch.dtype, v: Tensor) -> None:
    """v ← v as it reads back from storage in that dtype; in pieces, so that no second vector is made."""
    if v.dtype != dtype:
        for piece in torch.split(v, _block_size(v)):
            piece.copy_(piece.to(dtype))


def _widened(rows: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of columns in another dtype, in one buffer that is used again and again."""
    width = max(1, min(rows.shape[1], _block_size(rows) // max(1, rows.shape[0])))  # a process may hold nothing
    buffer = torch.empty(rows.shape[0], width, dtype=dtype, device=rows.device)
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width]
        yield slice(start, start + width), buffer[:, : part.shape[1]].copy_(part)


def _block_size(tensor: Tensor) -> int:
    return _BLOCK_ON_CPU if tensor.device.type == "cpu" else _BLOCK_ELSEWHERE
