"""H0 as an operator that is not diagonal: Adam's second moments in the eigenbasis of Shampoo's factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adaqn.core.checks import at_least_one
from adaqn.core.eigenbasis import add_outer, first_basis, into_basis, lift, matrix_shape, next_basis, out_of_basis
from adaqn.core.scaling import Adam, decay_in_range

SIDES = ("left", "right")


class Kronecker(Adam):
    r"""H0 of SOAP (Vyas et al. 2024): Adam's scaling in the eigenbasis of Shampoo's preconditioner.

    For a parameter of shape p × q with gradient G

    .. math::
        H_0 v = Q_L \Big( \frac{Q_L^T v\, Q_R}{\sqrt{\hat V} + \epsilon} \Big) Q_R^T, \quad
        V = \mathrm{avg}\big((Q_L^T G\, Q_R)^2\big), \quad L = \mathrm{avg}(G G^T), \quad R = \mathrm{avg}(G^T G)

    with :math:`Q_L, Q_R` the eigenvectors of L and R, so that H0 is symmetric and positive definite: a positive
    diagonal matrix between an orthonormal one and its transpose. The first basis is exact; every ``refresh`` steps one
    power iteration and a QR decomposition follow L and R. V is not rotated then, only sorted as its columns were.

    A tensor of more than two dimensions is a matrix, cut where it is most nearly square. Scalars and vectors have
    Adam's diagonal. So has a side longer than ``max_dimension``: its Q is the identity. Complex parameters are pairs
    of reals, a complex vector therefore a matrix of two columns.

    Where it differs from SOAP: there is no first moment (that is the optimizer's business); SOAP makes no step with
    the very first gradient, from which its first basis comes, and this is Adam's diagonal for that one step; ε is
    added after the bias correction, as in torch's Adam; more than two dimensions are flattened instead of having a
    basis each; a refresh from averages that are zero or overflowed is left out; what gradients say nothing of has a
    basis by rule instead of rounding errors, for a shift of L and R by 1e-6 of their largest eigenvalue (D22); √V̂ + ε
    is at least 128 units of rounding of its norm, without which float32 weights drift along directions that no
    gradient has. The decay and ε are those of the public programs; the paper's text was not at hand to check.
    ``refresh`` is 10 in one of them and 2 in another, and 5 did better than 10 here (``experiments/LOG.md``);
    ``max_dimension`` is 10000 in both.

    Cost per p × q matrix: 2p² + 2q² numbers beside V (L, R and the bases). Each gradient and each application
    take four products of matrices, 4pq(p + q) operations, and two temporaries of its size; a refresh takes about
    5(p³ + q³). Forward and backward of a linear layer take 6pqB for B rows per batch, so H0 is cheap beside them
    where p + q is small beside B.

    Args:
        decay: β of V's running average.
        eps: ε.
        refresh: gradients between two refreshments of the bases.
        max_dimension: the longest side that has a basis.
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
        max_dimension: int = 2048,
        basis_decay: float | None = None,
    ) -> None:
        super().__init__(decay, eps)
        self.refresh = at_least_one("refresh", refresh)
        self.max_dimension = at_least_one("max_dimension", max_dimension)
        self.basis_decay = self.decay if basis_decay is None else decay_in_range("basis_decay", basis_decay)
        self.seen: list[int] = []

    def tensor_shapes(self, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        if len(shape) < 2 or 0 in shape:
            return {}
        shapes: dict[str, tuple[int, ...]] = {}
        for side, n in zip(SIDES, matrix_shape(shape), strict=True):
            if 1 < n <= self.max_dimension:  # a side of length 1 has no other basis
                shapes |= {f"{side}_average": (n, n), f"{side}_basis": (n, n)}
        return shapes

    def reset(self) -> None:
        super().reset()
        self.seen = [0] * len(self.shapes)
        for tensors in self.tensors:
            for side in SIDES:
                if f"{side}_basis" in tensors:
                    tensors[f"{side}_basis"].fill_diagonal_(1.0)

    def update(self, g: Tensor) -> None:
        self.update_some(g, range(len(self.shapes)))

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        gradients, moments = self._matrices(g), self._matrices(self.vectors["square_avg"])
        for i in present:
            # Before this gradient is looked at: a basis made from it would be that of its own rounding errors.
            self._turn(i, [moments[i]])
            self._add_square(i, moments[i], gradients[i])
            self._add_to_averages(i, gradients[i])

    def _add_square(self, i: int, moments: Tensor, v: Tensor) -> Tensor:
        """V ← its running average with the square of v in the coordinates of the bases; returns v in those."""
        rotated = self._rotated(i, v)
        moments.mul_(self.decay).addcmul_(rotated, rotated, value=1.0 - self.decay)
        return rotated

    def _rotated(self, i: int, v: Tensor) -> Tensor:
        return into_basis(v, *self._bases(i)) if self.tensors[i] else v

    def _add_to_averages(self, i: int, G: Tensor) -> None:
        """L and R, from which the next bases come."""
        for side, matrix in zip(SIDES, (G, G.t()), strict=True):
            if f"{side}_average" in self.tensors[i]:
                add_outer(self.tensors[i][f"{side}_average"], matrix, self.basis_decay)
        self.steps[i] += 1
        self.seen[i] += 1

    def roots(self, out: Tensor) -> Tensor:
        """out ← √V̂ + ε, in the coordinates of the bases."""
        for i, root in enumerate(self._matrices(super().roots(out))):
            if self.tensors[i]:
                lift(root)
        return out

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
            if self.tensors[i]:
                rotated = into_basis(part, *self._bases(i))
                out_of_basis(operation(rotated, root, out=rotated), *self._bases(i), out=root)
            else:
                operation(part, root, out=root)
        return out

    def numbers(self, index: int) -> dict[str, float]:
        return {"step": self.steps[index], "seen": self.seen[index]}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.steps[index], self.seen[index] = int(numbers["step"]), int(numbers["seen"])

    def _turn(self, i: int, moments: Sequence[Tensor]) -> None:
        """The first basis, or the next one, where one is due; averages in its coordinates follow."""
        age = self.seen[i] - 1  # SOAP counts from the gradient after the first
        if not self.tensors[i] or age < 0 or age % self._refresh(i):
            return
        for dim, side in enumerate(SIDES):
            if f"{side}_basis" not in self.tensors[i]:
                continue
            average, basis = self.tensors[i][f"{side}_average"], self.tensors[i][f"{side}_basis"]
            if age == 0:
                basis.copy_(first_basis(average))
            else:
                Q, order = next_basis(average, basis)
                basis.copy_(Q)
                for V in moments:
                    V.copy_(V.index_select(dim, order))
        if age == 0:  # they were of the identity's coordinates
            for V in moments:
                V.zero_()
            self.steps[i] = 0

    def _refresh(self, i: int) -> int:
        """Gradients between two refreshments of that parameter's bases."""
        return self.refresh

    def _bases(self, i: int) -> tuple[Tensor | None, Tensor | None]:
        return self.tensors[i].get("left_basis"), self.tensors[i].get("right_basis")

    def _matrices(self, vector: Tensor) -> list[Tensor]:
        """One view per parameter, a matrix."""
        pieces = torch.split(vector, self.sizes)
        return [piece.view(matrix_shape(shape)) for piece, shape in zip(pieces, self.shapes, strict=True)]
