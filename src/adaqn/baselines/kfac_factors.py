"""The mathematics of K-FAC as functions of tensors. (Martens and Grosse 2015; Eschenhagen et al. 2023)

The weights of a layer are one matrix W of shape (q, p): outputs by inputs, the bias as its last column, and its inputs
a end in a one. An embedding is such a layer whose inputs are one-hot. The curvature of vec(W) is taken to be A ⊗ G,
with A of size p from the inputs and G of size q from the gradients g of the loss in the layer's outputs.

Weights shared over R positions (time steps) of each of N examples:

    expand    A = 1/(NR) Σ_nr a_nr a_nrᵀ             G = M Σ_nr g_nr g_nrᵀ
    reduce    A = 1/N Σ_n ā_n ā_nᵀ, ā_n = mean_r a    G = M Σ_n (Σ_r g_nr)(Σ_r g_nr)ᵀ

For the mean of M loss terms M is their number, since every g carries a factor 1/M; for their sum M = 1. Either way
A ⊗ G estimates the curvature of the very loss that was differentiated. A factor is a matrix, or a vector: its diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerForm:
    """What the factors must know of a layer."""

    inputs: int
    """p, the one for the bias included."""
    outputs: int
    bias: bool = False
    one_hot: bool = False
    padding: int | None = None
    """The symbol that has no gradient."""
    diagonal_inputs: bool = False
    diagonal_outputs: bool = False

    def factor_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of A and G."""
        p, q = self.inputs, self.outputs
        return (p,) if self.diagonal_inputs else (p, p), (q,) if self.diagonal_outputs else (q, q)


class PassSums:
    """The sums over all calls of one layer in one backward pass; a call adds its positions to those of the others.

    >>> sums = PassSums(LayerForm(inputs=2, outputs=1), expand=True)
    >>> sums.add(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0], [3.0]]))
    >>> sums.input_factor(), sums.gradient_sum(), sums.examples
    (tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]]), tensor([[10.]]), 2)
    """

    def __init__(self, form: LayerForm, expand: bool) -> None:
        self.form, self.expand = form, expand
        self.examples = self.rows = self.positions = 0
        self.inputs: Tensor | None = None
        self.gradients: Tensor | None = None

    def add(self, x: Tensor, g: Tensor) -> None:
        """One call: inputs (N, ..., p) or symbols (N, ...), and gradients (N, ..., q), not batched if N is missing."""
        x = per_example(x, 1 if self.form.one_hot else 2)
        g = per_example(g, 2)
        count, positions = x.shape[:2]
        if self.form.one_hot and self.form.padding is not None:
            g = g * (x != self.form.padding).unsqueeze(-1)
        if self.expand:
            inputs = self._input_squares(x, g.dtype)
            gradients = second_moment(g.flatten(0, 1), self.form.diagonal_outputs)
        else:
            self._check_same(count)
            inputs, gradients = self._input_sums(x, g.dtype), g.sum(1)
        self.inputs = inputs if self.inputs is None else self.inputs.add_(inputs)
        self.gradients = gradients if self.gradients is None else self.gradients.add_(gradients)
        # Sequences of unequal length: a later call may have fewer examples.
        self.examples = max(self.examples, count)
        self.rows += count * positions
        self.positions += positions

    def input_factor(self) -> Tensor:
        """A of this pass."""
        assert self.inputs is not None
        if self.expand:
            return self.inputs / self.rows
        return second_moment(self.inputs / self.positions, self.form.diagonal_inputs) / self.examples

    def gradient_sum(self) -> Tensor:
        """G of this pass, without the factor M."""
        assert self.gradients is not None
        return self.gradients if self.expand else second_moment(self.gradients, self.form.diagonal_outputs)

    def _input_squares(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if self.form.one_hot:
            return torch.bincount(self._symbols(x), minlength=self.form.inputs + 1)[:-1].to(dtype)
        return second_moment(self._homogeneous(x, dtype).flatten(0, 1), self.form.diagonal_inputs)

    def _input_sums(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.form.one_hot:
            return self._homogeneous(x, dtype).sum(1)
        symbols = self._symbols(x).view(x.shape)
        counts = torch.zeros(len(x), self.form.inputs + 1, dtype=dtype, device=x.device)
        return counts.scatter_add_(1, symbols, torch.ones_like(symbols, dtype=dtype))[:, :-1]

    def _symbols(self, x: Tensor) -> Tensor:
        """The symbols in a row; padding is one more symbol, which the caller cuts off."""
        x = x.flatten()
        return x if self.form.padding is None else torch.where(x == self.form.padding, self.form.inputs, x)

    def _homogeneous(self, a: Tensor, dtype: torch.dtype) -> Tensor:
        a = a.to(dtype)
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1) if self.form.bias else a

    def _check_same(self, count: int) -> None:
        if self.examples not in (0, count):
            raise RuntimeError(
                f"a layer was called with {self.examples} examples and then with {count} in one pass, and sharing="
                "'reduce' adds them up example by example: use sharing='expand'"
            )


def per_example(x: Tensor, dims: int) -> Tensor:
    """(N, ..., d) → (N, R, d) for dims = 2, (N, ...) → (N, R) for dims = 1; what has no batch becomes N = 1."""
    if x.dim() < dims:
        x = x.unsqueeze(0)
    features = x.shape[len(x.shape) - dims + 1 :]
    return x.reshape(x.shape[0], x.shape[1 : x.dim() - dims + 1].numel(), *features)


def second_moment(rows: Tensor, diagonal: bool) -> Tensor:
    """Σ v vᵀ over the rows v, or its diagonal."""
    return rows.square().sum(0) if diagonal else rows.T @ rows


def running_average(old: Tensor | None, new: Tensor, count: int, limit: float) -> Tensor:
    """ε old + (1 − ε) new with ε = min(1 − 1/count, limit): a plain mean at first. (Martens and Grosse, section 5)

    >>> running_average(torch.tensor(1.0), torch.tensor(3.0), count=2, limit=0.95)
    tensor(2.)
    """
    return new if old is None else old + (1.0 - min(1.0 - 1.0 / count, limit)) * (new - old)


def pi_correction(A: Tensor, G: Tensor) -> Tensor:
    """π = √((tr A / p) / (tr G / q)), which gives both factors their share of the damping; 1 if a trace is zero. (6.3)

    >>> pi_correction(torch.tensor([4.0, 4.0]), torch.eye(3))
    tensor(2.)
    """
    a, g = (f.mean() if f.dim() == 1 else f.diagonal().mean() for f in (A, G))
    usable = (a > 0) & (g > 0)
    return torch.where(usable, (a / torch.where(usable, g, 1.0)).sqrt(), 1.0)


def damped_inverse(factor: Tensor, shift: Tensor) -> Tensor:
    """(factor + shift·I)⁻¹, computed in float64: rounding leaves no negative eigenvalue larger than a usual shift."""
    if factor.dim() == 1:
        return 1.0 / (factor + shift)
    wide = factor.to(torch.float64, copy=True)
    wide.diagonal().add_(shift)
    root, failed = torch.linalg.cholesky_ex(wide)
    if not int(failed):
        return torch.cholesky_inverse(root).to(factor.dtype)
    values, vectors = torch.linalg.eigh(factor.double())
    inverse: Tensor = (vectors / (values.clamp(min=0.0) + shift)) @ vectors.T
    return inverse.to(factor.dtype)


def damped_inverses(A: Tensor, G: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """(A + π√λ I)⁻¹ and (G + √λ/π I)⁻¹: factored Tikhonov damping, λ = ``damping``. (6.3)

    >>> A_inverse, G_inverse = damped_inverses(torch.eye(2), torch.eye(2), damping=1.0)
    >>> A_inverse.diagonal()
    tensor([0.5000, 0.5000])
    """
    pi, root = pi_correction(A, G), damping**0.5
    return damped_inverse(A, pi * root), damped_inverse(G, root / pi)


def precondition(gradient: Tensor, A_inverse: Tensor, G_inverse: Tensor) -> Tensor:
    """G⁻¹ ∇W A⁻¹ = (A ⊗ G)⁻¹ vec(∇W), for a gradient of shape (q, p)."""
    left = G_inverse.unsqueeze(1) * gradient if G_inverse.dim() == 1 else G_inverse @ gradient
    return left * A_inverse if A_inverse.dim() == 1 else left @ A_inverse


def clip_scale(products: Sequence[Tensor], limit: float | None) -> Tensor:
    """ν = min(1, √(κ / Σ lr² Δ·∇)), given each layer's lr² Δ·∇; with it the step's ν² lr² ΔᵀFΔ is at most κ.

    Δ·∇ = Δᵀ(F + damping)Δ is at least ΔᵀFΔ, twice the Kullback-Leibler divergence of a step of length one.

    >>> clip_scale([torch.tensor(3.0), torch.tensor(1.0)], limit=1.0)
    tensor(0.5000)
    """
    total = torch.stack(list(products)).sum()
    if limit is None:
        return torch.ones_like(total)
    # A gradient of zero has nothing to clip; rounding may make its product a little less than zero.
    return torch.where(total > limit, (limit / total).sqrt(), 1.0)
