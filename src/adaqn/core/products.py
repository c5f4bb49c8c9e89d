"""Products of a few long rows with a vector: the only heavy arithmetic of a quasi-Newton step.

Rows of the vector's own dtype go to BLAS in one call, which reads them at memory speed. Rows in
another dtype (bfloat16 history) are widened block by block, so that the wide copy stays in the
cache: memory moves two bytes per element, and nothing of the size of the history is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a small tensor of partial products over all processes; the identity for one process."""

_COLUMNS_ON_CPU = 1 << 16
_COLUMNS_ELSEWHERE = 1 << 22  # a cache is not the point there: fewer, larger kernels are


def local(partial: Tensor) -> Tensor:
    """The reduction of a single process: nothing to add."""
    return partial


def dots(rows: Tensor, v: Tensor) -> Tensor:
    """rows·v as float64, for ``rows`` of shape (k, n)."""
    if rows.dtype == v.dtype:
        return rows.mv(v).double()
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for block in _column_blocks(rows):
        total += rows[:, block].to(v.dtype).mv(v[block])
    return total


def add_combination(out: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """out ← out + rowsᵀ·weights, in place."""
    weights = weights.to(out.dtype)
    if rows.dtype == out.dtype:
        return out.addmv_(rows.t(), weights)
    for block in _column_blocks(rows):
        out[block].addmv_(rows[:, block].to(out.dtype).t(), weights)
    return out


def _column_blocks(rows: Tensor) -> Iterator[slice]:
    width = _COLUMNS_ON_CPU if rows.device.type == "cpu" else _COLUMNS_ELSEWHERE
    for start in range(0, rows.shape[1], width):
        yield slice(start, start + width)
