"""Second moments carried from one basis to another: what is left of them where a matrix gets other blocks.

Let V be the second moments of a gradient in the coordinates of its bases, v = Q_Lᵀ G Q_R. If those are uncorrelated,
the second moments of G = Q_L v Q_Rᵀ are (Q_L∘Q_L) V (Q_R∘Q_R)ᵀ, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from adaqn.core.blocks import Block

Bases = tuple[Block, Tensor | None, Tensor | None]
"""A block, Q_L and Q_R; ``None`` is the identity."""


def moments_into_basis(V: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Of v = Q_Lᵀ G Q_R, from those of G."""
    moved = V if left is None else left.square().t() @ V
    return moved if right is None else moved @ right.square()


def moments_out_of_basis(V: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Of G = Q_L v Q_Rᵀ, from those of v.

    >>> turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    >>> moments_out_of_basis(torch.tensor([[1.0], [0.0]]), turned, None).flatten()
    tensor([0.3600, 0.6400])
    """
    moved = V if left is None else left.square() @ V
    return moved if right is None else moved @ right.square().t()


def bases_by_block(blocks: Sequence[Block], tensors: dict[str, Tensor]) -> Iterator[Bases]:
    """The bases of each block, as they lie one behind the other in what a Kronecker scaling keeps of a matrix."""
    rests = {side: tensors.get(f"{side}_basis", torch.empty(0)).reshape(-1) for side in ("left", "right")}
    for block in blocks:
        found: list[Tensor | None] = []
        for side, n in zip(("left", "right"), block.shape, strict=True):
            found.append(rests[side][: n * n].view(n, n) if n > 1 else None)
            rests[side] = rests[side][n * n :] if n > 1 else rests[side]
        yield block, found[0], found[1]


def own_coordinates(V: Tensor, blocks: Sequence[Block], tensors: dict[str, Tensor]) -> Tensor:
    """A matrix of second moments in the coordinates of the parameter itself, from those of its blocks' bases."""
    found = V.clone()
    for block, left, right in bases_by_block(blocks, tensors):
        (top, bottom), (first, last) = block.rows, block.columns
        found[top:bottom, first:last] = moments_out_of_basis(V[top:bottom, first:last], left, right)
    return found
