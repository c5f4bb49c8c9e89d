"""H0 as an operator that is not diagonal: Adam's second moments in the eigenbasis of Shampoo's factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaqn.core.blocks import BLOCK_SIZE, Block, blocks_of
from adaqn.core.carried import moments_into_basis, own_coordinates
from adaqn.core.checks import at_least_one, whole
from adaqn.core.eigenbasis import add_outer, first_basis, into_basis, lift, matrix_shape, next_basis, out_of_basis
from adaqn.core.scaling import Adam, decay_in_range

SIDES = ("left", "right")


@dataclass(frozen=True)
class Factors:
    """What is known of one block: L, R (the averages) and the bases, by side; a side of length 1 has none."""

    block: Block
    averages: dict[str, Tensor]
    bases: dict[str, Tensor]

    def of(self, matrix: Tensor) -> Tensor:
        """Its part of a matrix, as a view."""
        (top, bottom), (first, last) = self.block.rows, self.block.columns
        return matrix[top:bottom, first:last]


class Kronecker(Adam):
    r"""H0 of SOAP (Vyas et al. 2024): Adam's scaling in the eigenbasis of Shampoo's preconditioner.

    For a parameter of shape p × q with gradient G

    .. math::
        H_0 v = Q_L \Big( \frac{Q_L^T v\, Q_R}{\sqrt{\hat V} + \epsilon} \Big) Q_R^T, \quad
        V = \mathrm{avg}\big((Q_L^T G\, Q_R)^2\big), \quad L = \mathrm{avg}(G G^T), \quad R = \mathrm{avg}(G^T G)

    with :math:`Q_L, Q_R` the eigenvectors of L and R, so that H0 is symmetric and positive definite: a positive
    diagonal matrix between an orthonormal one and its transpose. The first basis is exact; every ``refresh`` steps one
    power iteration and a QR decomposition follow L and R. V is not rotated then, only sorted as its columns were.

    A tensor of more than two dimensions is a matrix, cut where it is most nearly square. A side longer than
    ``block_size``, or than 128 and four times the other side, is cut into equal pieces, and each block of the matrix
    has its own L, R and bases: H0 is block-diagonal, as in Distributed Shampoo. Scalars and vectors have Adam's
    diagonal, and so has a side of length 1. Complex parameters are pairs of reals, a complex vector therefore a matrix
    of two columns.

    Where it differs from SOAP: there is no first moment (that is the optimizer's business); SOAP makes no step with
    the very first gradient, from which its first basis comes, and this is Adam's diagonal for that one step; ε is
    added after the bias correction, as in torch's Adam; more than two dimensions are flattened instead of having a
    basis each; a refresh from averages that are zero or overflowed is left out; what gradients say nothing of has a
    basis by rule instead of rounding errors, for a shift of L and R by 1e-6 of their largest eigenvalue (D22); √V̂ + ε
    is at least 128 units of rounding of its norm, without which float32 weights drift along directions that no
    gradient has. The decay and ε are those of the public programs; the paper's text was not at hand to check.
    ``refresh`` is 10 in one of them and 2 in another, and 5 did better than 10 here (``experiments/LOG.md``); both give
    sides of more than 10000 no basis, and cut none.

    Cost per p × q block: 2p² + 2q² numbers beside V (L, R and the bases). Each gradient and each application
    take four products of matrices, 4pq(p + q) operations, and two temporaries of its size; a refresh takes about
    5(p³ + q³). Forward and backward of a linear layer take 6pqB for B rows per batch, so H0 is cheap beside them
    where p + q is small beside B.

    Args:
        decay: β of V's running average.
        eps: ε.
        refresh: gradients between two refreshments of the bases.
        block_size: the longest side of a block.
        basis_decay: β of the averages L and R; by default that of V.

    >>> from adaqn import AdaQN
    >>> model = torch.nn.Linear(4, 3)
    >>> opt = AdaQN(model.parameters(), lr=3e-3, reject="none", scaling=Kronecker(refresh=5))
    >>> model(torch.randn(8, 4)).square().mean().backward()
    >>> opt.step()
    >>> opt.state[model.weight]["scaling_left_basis"].shape
    torch.Size([3, 3])
    """

    number_names = ("step", "seen")
    elementwise = False

    def __init__(
        self,
        decay: float = 0.95,
        eps: float = 1e-8,
        *,
        refresh: int = 5,
        block_size: int = BLOCK_SIZE,
        basis_decay: float | None = None,
        **removed: Any,
    ) -> None:
        refuse_max_dimension(type(self).__name__, removed)
        super().__init__(decay, eps)
        self.refresh = at_least_one("refresh", refresh)
        self.block_size = whole("block_size", block_size, 2)
        self.basis_decay = self.decay if basis_decay is None else decay_in_range("basis_decay", basis_decay)
        self.seen: list[int] = []
        self.factors: list[list[Factors]] = []

    def blocks(self, shape: Sequence[int]) -> list[Block] | None:
        if len(shape) < 2 or 0 in shape:
            return None
        return blocks_of(matrix_shape(shape), self.block_size)

    def tensor_shapes(self, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        blocks = self.blocks(shape) or []
        shapes: dict[str, tuple[int, ...]] = {}
        for dim, side in enumerate(SIDES):
            lengths = [block.shape[dim] for block in blocks if block.shape[dim] > 1]  # 1 has no other basis
            if lengths:
                size = (lengths[0], lengths[0]) if len(blocks) == 1 else (sum(n * n for n in lengths),)
                shapes |= {f"{side}_average": size, f"{side}_basis": size}
        return shapes

    def build(
        self,
        vectors: dict[str, Tensor],
        shapes: Sequence[Sequence[int]],
        tensors: Sequence[dict[str, Tensor]] | None = None,
        cuts: Sequence[int | None] | None = None,
    ) -> None:
        cuts = list(cuts) if cuts is not None else [None] * len(shapes)
        self.matrices = [matrix_shape(shape, cut) for shape, cut in zip(shapes, cuts, strict=True)]
        kept = list(tensors) if tensors is not None else [{} for _ in shapes]
        self.factors = [
            self._factors(matrix, tensors) if len(shape) > 1 else []
            for shape, matrix, tensors in zip(shapes, self.matrices, kept, strict=True)
        ]
        super().build(vectors, shapes, kept, cuts)

    def _factors(self, matrix: tuple[int, int], tensors: dict[str, Tensor]) -> list[Factors]:
        """Views of what is kept for each block of a matrix."""
        found = [Factors(block, {}, {}) for block in self.blocks(matrix) or []]
        for dim, side in enumerate(SIDES):
            blocks = [f for f in found if f.block.shape[dim] > 1]
            sizes = [f.block.shape[dim] ** 2 for f in blocks]
            for kind in ("average", "basis") if blocks else ():
                pieces = torch.split(tensors[f"{side}_{kind}"].view(-1), sizes)
                for f, piece in zip(blocks, pieces, strict=True):
                    n = f.block.shape[dim]
                    (f.averages if kind == "average" else f.bases)[side] = piece.view(n, n)
        return [f for f in found if f.bases]

    def reset(self) -> None:
        super().reset()
        self.seen = [0] * len(self.shapes)
        for factors in self.factors:
            for f in factors:
                for basis in f.bases.values():
                    basis.fill_diagonal_(1.0)

    def update(self, g: Tensor) -> None:
        self.update_some(g, range(len(self.shapes)))

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        gradients, moments = self._matrices(g), self._matrices(self.vectors["square_avg"])
        for i in present:
            # Before this gradient is looked at: a basis made from it would be that of its own rounding errors.
            self._turn(i, [moments[i]])
            self._add_square(i, moments[i], gradients[i])
            self._add_to_averages(i, gradients[i])

    def _add_square(self, i: int, V: Tensor, v: Tensor) -> Tensor:
        """V of one matrix; returns v in the coordinates of its bases."""
        rotated = self._rotated(i, v)
        V.mul_(self.decay).addcmul_(rotated, rotated, value=1.0 - self.decay)
        return rotated

    def _rotated(self, i: int, v: Tensor) -> Tensor:
        if not self.factors[i]:
            return v
        rotated = v.clone()
        for f in self.factors[i]:
            f.of(rotated).copy_(into_basis(f.of(v), f.bases.get("left"), f.bases.get("right")))
        return rotated

    def _add_to_averages(self, i: int, G: Tensor) -> None:
        """L and R, from which the next bases come."""
        for f in self.factors[i]:
            for side, average in f.averages.items():
                part = f.of(G)
                add_outer(average, part if side == "left" else part.t(), self.basis_decay)
        self.steps[i] += 1
        self.seen[i] += 1

    def roots(self, out: Tensor) -> Tensor:
        """out ← √V̂ + ε, in the coordinates of the bases."""
        return self._lifted(super().roots(out))

    def _lifted(self, roots: Tensor) -> Tensor:
        for i, root in enumerate(self._matrices(roots)):
            for f in self.factors[i]:
                f.of(root).copy_(lift(f.of(root).contiguous()))
        return roots

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return self._between_bases(torch.div, v, out)

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        return self._between_bases(torch.mul, v, out)

    def square(self, v: Tensor) -> Tensor:
        """v·H0 v: half of the products of an application."""
        rotated = [self._rotated(i, part) for i, part in enumerate(self._matrices(v))]
        return self._square(rotated, self.roots(torch.empty_like(v)))

    def _square(self, rotated: Sequence[Tensor], roots: Tensor) -> Tensor:
        """The same from v in the coordinates of the bases."""
        total = torch.zeros((), dtype=torch.float64, device=roots.device)
        for part, root in zip(rotated, self._matrices(roots), strict=True):
            total += torch.div(part, root, out=root).flatten().dot(part.flatten())
        return total

    def _between_bases(self, operation: Callable[..., Tensor], v: Tensor, out: Tensor) -> Tensor:
        """out ← v with the operation by the roots, in the coordinates of the bases."""
        roots = self._matrices(self.roots(out))
        for i, (part, root) in enumerate(zip(self._matrices(v), roots, strict=True)):
            operation(self._rotated(i, part), root, out=root)
            for f in self.factors[i]:
                turned = f.of(root).contiguous()
                back = out_of_basis(turned, f.bases.get("left"), f.bases.get("right"), out=torch.empty_like(turned))
                f.of(root).copy_(back)
        return out

    def numbers(self, index: int) -> dict[str, float]:
        return {"step": self.steps[index], "seen": self.seen[index]}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.steps[index], self.seen[index] = int(numbers["step"]), int(numbers["seen"])

    def own_moments(self, index: int) -> dict[str, Tensor]:
        if not self.tensors[index]:
            return {}
        blocks = self.blocks(self.matrices[index]) or []
        return {
            name: own_coordinates(self._matrices(self.vectors[name])[index], blocks, self.tensors[index])
            for name in self.vector_names
        }

    def restart(self, index: int) -> None:
        for tensor in self.tensors[index].values():
            tensor.zero_()
        for f in self.factors[index]:
            for basis in f.bases.values():
                basis.fill_diagonal_(1.0)
        self.seen[index] = 0  # V keeps its age: by that the first basis knows that it is to be carried

    def _turn(self, i: int, moments: Sequence[Tensor]) -> None:
        """The first basis, or the next one, where one is due; averages in its coordinates follow."""
        age = self.seen[i] - 1  # SOAP counts from the gradient after the first
        if len(self.shapes[i]) < 2 or age < 0 or age % self._refresh(i):
            return
        carries = self.steps[i] > self.seen[i]
        for f in self.factors[i]:
            for side, basis in f.bases.items():
                if age == 0:
                    basis.copy_(first_basis(f.averages[side]))
                    continue
                Q, order = next_basis(f.averages[side], basis)
                basis.copy_(Q)
                for V in moments:
                    f.of(V).copy_(f.of(V).index_select(SIDES.index(side), order))
        if age == 0 and carries:  # a block that restarted with what was known of it
            for f in self.factors[i]:
                for V in moments:
                    f.of(V).copy_(moments_into_basis(f.of(V), f.bases.get("left"), f.bases.get("right")))
        elif age == 0:  # they were of the identity's coordinates
            for V in moments:
                V.zero_()
            self.steps[i] = 0

    def _refresh(self, i: int) -> int:
        """Gradients between two refreshments of that parameter's bases."""
        return self.refresh

    def _matrices(self, vector: Tensor) -> list[Tensor]:
        """One view per parameter, a matrix."""
        return [piece.view(shape) for piece, shape in zip(torch.split(vector, self.sizes), self.matrices, strict=True)]


def refuse_max_dimension(name: str, removed: dict[str, Any]) -> None:
    """An error for arguments that are not there."""
    if "max_dimension" in removed:
        raise TypeError(
            f"{name} has no argument 'max_dimension' any more: longer sides are cut into blocks with a basis each, "
            f"write block_size={removed['max_dimension']!r}"
        )
    if removed:
        raise TypeError(f"{name} has no argument {', '.join(map(repr, removed))}")
