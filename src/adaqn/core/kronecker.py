"""H0 as an operator that is not diagonal: Adam's second moments in the eigenbasis of Shampoo's factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from adaqn.core.blocks import BLOCK_SIZE, Block, blocks_of
from adaqn.core.checks import at_least_one, whole
from adaqn.core.eigenbasis import (
    add_outer,
    carried_back,
    into_basis,
    is_orthonormal,
    lift,
    matrix_shape,
    out_of_basis,
)
from adaqn.core.scaling import Adam, decay_in_range, parts_of, present_parts
from adaqn.core.stacks import SIDES, Member, Stack, Stacks, members_of
from adaqn.core.turning import Place, Turning

SELECTIONS = 4
"""Of parameters with a gradient for which stacks are kept, beside all: often the same ones come in turn."""


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
    ``block_size`` is cut into equal pieces, and each block of the matrix has its own L, R and bases: H0 is
    block-diagonal, as in Distributed Shampoo. A side longer than 128 and twice the other, such as that of the
    words of a language model, has no basis. Scalars and vectors have Adam's
    diagonal, and so has a side of length 1. Complex parameters are pairs of reals, a complex vector therefore a matrix
    of two columns.

    Where it differs from SOAP: there is no first moment (that is the optimizer's business); SOAP makes no step with
    the very first gradient, from which its first basis comes, and forgets it; this is Adam's diagonal for that one
    step, and V goes along into the first basis, (Q_L∘Q_L)ᵀ V (Q_R∘Q_R) (D31); ε is
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
    skips_by_itself = True
    starts_anew = False
    """Is V of the first gradient forgotten at the first basis? Not here: momentum remembers that gradient, and would be
    divided by zero where the second one has no part, as in the rows of an embedding that are not in its batch."""

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
        """How often each parameter had a gradient, finite or not: by this the bases are refreshed."""
        self.matrices: list[tuple[int, int]] = []
        self._members: list[list[Member]] = []
        self._stacks: dict[tuple[int, ...], Stacks] = {}

    def blocks(self, shape: Sequence[int]) -> list[Block] | None:
        if len(shape) < 2 or 0 in shape:
            return None
        return blocks_of(matrix_shape(shape), self.block_size)

    def tensor_shapes(self, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        blocks = self.blocks(shape) or []
        shapes: dict[str, tuple[int, ...]] = {}
        for dim, side in enumerate(SIDES):
            lengths = [block.sides[dim] for block in blocks if block.sides[dim] > 1]  # 1 has no other basis
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
        places: Sequence[Place] | None = None,
        blocks: Sequence[Sequence[Block]] | None = None,
    ) -> None:
        """``places`` say where these parameters lie in whole ones, which have those ``blocks``, if they are parts."""
        cuts = list(cuts) if cuts is not None else [None] * len(shapes)
        tensors = list(tensors) if tensors is not None else [{} for _ in shapes]
        self.matrices = [matrix_shape(shape, cut) for shape, cut in zip(shapes, cuts, strict=True)]
        starts = [0, *accumulate(p * q for p, q in self.matrices)]
        self._members = [
            members_of(i, self.blocks(self.matrices[i]) or [], starts[i], self.matrices[i], kept) if kept else []
            for i, kept in enumerate(tensors)
        ]
        self._stacks = {}
        if places is None or blocks is None:
            blocks = [[member.block for member in members] for members in self._members]
            places = [Place(i) for i in range(len(blocks))]
        self._turning = Turning(places, blocks, self._refresh, starts_anew=self.starts_anew)
        super().build(vectors, shapes, tensors, cuts)

    def reset(self) -> None:
        super().reset()
        self.seen = [0] * len(self.shapes)
        self._turning.reset()
        for basis in (basis for members in self._members for member in members for basis in member.bases):
            if basis is not None:
                basis.fill_diagonal_(1.0)

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        self._see({"square_avg": g}, present)

    def _see(self, shown: dict[str, Tensor], present: Sequence[int], turned: list[Tensor] | None = None) -> None:
        """Add squares to these vectors, and outer products of the first to L and R; ``turned`` gets it by stacks."""
        stacks, first = self._stacks_of(present), next(iter(shown))
        # Before the gradient is looked at: a basis made from it would be that of its own rounding errors.
        moments = [self.vectors[name] for name in self.vector_names]
        self.ages.restart(self._turning.turn(stacks, moments, self.seen, present))
        self._forget(shown, stacks, present)
        cut = {name: (stacks.split(v), stacks.split(self.vectors[name])) for name, v in shown.items()}
        for stack in stacks.stacks:
            for name, (pieces, squares) in cut.items():
                v = stack.gather(pieces)
                x = into_basis(v, *stack.bases)
                parts = stack.parts(x)
                torch._foreach_addcmul_(stack.inside(squares), parts, parts, 1.0 - self.decay)
                if name == first:
                    self._add_outer(stack, v)
                    if turned is not None:
                        turned.append(x)
        for pieces, squares in cut.values() if stacks.rest else ():
            rest = [pieces[i] for i in stacks.rest]
            torch._foreach_addcmul_([squares[i] for i in stacks.rest], rest, rest, 1.0 - self.decay)
        self.ages.add(present, self.ok)
        for i in present:
            self.seen[i] += 1

    def _forget(self, names: Iterable[str], stacks: Stacks, present: Sequence[int]) -> None:
        """What averages lose to the next gradient."""
        remembered = self._remembered(self.decay)
        here = present_parts(self.sizes, set(present))
        for name in names if here else ():
            torch._foreach_mul_(parts_of(self.vectors[name], here), remembered)
        if self.ok is not None and stacks.averages:  # otherwise the product does this
            torch._foreach_mul_(stacks.averages, self._remembered(self.basis_decay))

    def _add_outer(self, stack: Stack, G: Tensor) -> None:
        """L and R, from which the next bases come."""
        keep = self.basis_decay if self.ok is None else 1.0
        transposed = G.mT
        for average, both in zip(stack.averages, ((G, transposed), (transposed, G)), strict=True):
            if average is not None:
                add_outer(average, *both, keep, 1.0 - self.basis_decay)

    def roots(self, out: Tensor) -> Tensor:
        """out ← √V̂ + ε, in the coordinates of the bases."""
        stacks = self._stacks_of(range(len(self.shapes)))
        pieces = stacks.split(self._plain_roots(out))
        for stack in stacks.stacks:
            lifted = lift(stack.gather(pieces))
            if not stack.is_view:
                stack.scatter(lifted, pieces)
        return out

    def _plain_roots(self, out: Tensor) -> Tensor:
        """The same but for what is too small."""
        return super().roots(out)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return self._between_bases(torch.div, torch._foreach_div, v, out)

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        return self._between_bases(torch.mul, torch._foreach_mul, v, out)

    def square(self, v: Tensor) -> Tensor:
        """v·H0 v: half of the products of an application."""
        stacks = self._stacks_of(range(len(self.shapes)))
        pieces = stacks.split(v)
        return self._square([into_basis(stack.gather(pieces), *stack.bases) for stack in stacks.stacks], v)

    def _square(self, turned: Sequence[Tensor], v: Tensor) -> Tensor:
        """The same where v is known by stacks, in the coordinates of the bases."""
        stacks = self._stacks_of(range(len(self.shapes)))
        pieces, roots = stacks.split(v), stacks.split(self._plain_roots(torch.empty_like(v)))
        found = [(x, lift(stack.gather(roots))) for stack, x in zip(stacks.stacks, turned, strict=True)]
        found += [(pieces[i], roots[i]) for i in stacks.rest]
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        for x, root in found:
            total += x.div(root).view(-1).dot(x.view(-1))
        return total

    def _between_bases(
        self, operation: Callable[..., Tensor], for_each: Callable[..., Any], v: Tensor, out: Tensor
    ) -> Tensor:
        """out ← v with the operation by the roots, in the coordinates of the bases."""
        stacks = self._stacks_of(range(len(self.shapes)))
        pieces, results = stacks.split(v), stacks.split(self._plain_roots(out))
        for stack in stacks.stacks:
            root = lift(stack.gather(results))
            x = into_basis(stack.gather(pieces), *stack.bases)
            out_of_basis(operation(x, root, out=x), *stack.bases, out=root)
            if not stack.is_view:
                stack.scatter(root, results)
        if stacks.rest:
            rest = [results[i] for i in stacks.rest]
            torch._foreach_copy_(rest, for_each([pieces[i] for i in stacks.rest], rest))
        return out

    def numbers(self, index: int) -> dict[str, float]:
        return {**super().numbers(index), "seen": self.seen[index]}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        super().load_numbers(index, numbers)
        self.seen[index] = int(numbers["seen"])
        # V that is older than L and R comes from elsewhere, and goes with the first basis instead of starting anew.
        self._turning.keep(index, keep=numbers["step"] > numbers["seen"])

    def own_moments(self, index: int) -> dict[str, Tensor]:
        found = {}
        for name in self.vector_names if self._members[index] else ():
            vector = self.vectors[name]
            own = torch.split(vector, self.sizes)[index].clone().view(self.matrices[index])
            for member in self._members[index]:
                (top, bottom), (first, last) = member.block.rows, member.block.columns
                own[top:bottom, first:last] = carried_back(member.of(vector).contiguous(), *member.bases)
            found[name] = own
        return found

    def has_bases(self, index: int) -> bool:
        """Are the bases of a parameter orthonormal? Those of other blocks, read as if they were of these, are not."""
        bases = [basis for member in self._members[index] for basis in member.bases if basis is not None]
        return all(map(is_orthonormal, bases))

    def is_new(self, index: int) -> bool:
        """Are the matrices of a parameter those from before its first gradient?"""
        members = self._members[index]
        if any(bool(average.any()) for member in members for average in member.averages if average is not None):
            return False
        bases = [basis for member in members for basis in member.bases if basis is not None]
        return all(torch.equal(basis, torch.eye(len(basis)).to(basis)) for basis in bases)

    def restart(self, index: int) -> None:
        for member in self._members[index]:
            for tensor in member.tensors():
                tensor.zero_()
            for basis in member.bases:
                if basis is not None:
                    basis.fill_diagonal_(1.0)
        self.load_numbers(index, {**self.numbers(index), "seen": 0})

    def _refresh(self, shape: tuple[int, int]) -> int:
        """Gradients between two refreshments of the bases of a block of that shape."""
        return self.refresh

    def _stacks_of(self, present: Sequence[int]) -> Stacks:
        key = tuple(present) if len(present) < len(self.shapes) else ()
        if key not in self._stacks:
            last = [k for k in self._stacks if k][1 - SELECTIONS :]
            self._stacks = {k: found for k, found in self._stacks.items() if not k or k in last}
            ends = [0, *accumulate(self.sizes)]
            members = [member for i in present for member in self._members[i]]
            # One without numbers here has no place: it would cut a stack that lies around it.
            rest = [(ends[i], ends[i + 1]) for i in present if not self._members[i] and self.sizes[i]]
            self._stacks[key] = Stacks(members, rest, ends[-1])
        return self._stacks[key]


def refuse_max_dimension(name: str, removed: dict[str, Any]) -> None:
    """An error for arguments that are not there."""
    if "max_dimension" in removed:
        raise TypeError(
            f"{name} has no argument 'max_dimension' any more: longer sides are cut into blocks with a basis each, "
            f"write block_size={removed['max_dimension']!r}"
        )
    if removed:
        raise TypeError(f"{name} has no argument {', '.join(map(repr, removed))}")
