"""The model of the objective in SFO: a sum of quadratics, one per minibatch, in the coordinates of a subspace.

    G(x) = Σ_i g_i(x),    g_i(x) = f_i + ∇f_i·(x − x_i) + ½ (x − x_i)ᵀ H_i (x − x_i)

x_i is where minibatch i was evaluated last, f_i and ∇f_i what was found there. H_i is βI + Vᵀ diag(λ) V.
Only differences of positions enter, so the origin of the coordinates is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaqn.baselines.sfo_hessian import UNRELATED, Fit, fit, is_informative, repaired

IMPLAUSIBLE = 1e6
"""Curvature along a step over what the losses at its ends say, from which on a gradient is taken for wrong."""


class SumModel:
    """N quadratics in K coordinates, of which those beyond the subspace's size are zero.

    Args:
        batches: N.
        dimensions: K, the most the subspace can have.
        history_size: pairs kept per minibatch.
        initial_curvature: H of the very first evaluation, times the identity.
        condition: the largest condition number of an H_i.
        eps: the rounding unit of the gradients that will come.
    """

    def __init__(
        self, batches: int, dimensions: int, history_size: int, initial_curvature: float, condition: float, eps: float
    ) -> None:
        self.initial_curvature, self.condition, self.eps = initial_curvature, condition, eps
        self.tensors = {
            name: torch.zeros(shape, dtype=dtype)
            for name, (shape, dtype) in shapes(batches, dimensions, history_size).items()
        }

    @property
    def positions(self) -> Tensor:
        return self.tensors["positions"]

    @property
    def gradients(self) -> Tensor:
        return self.tensors["gradients"]

    @property
    def losses(self) -> Tensor:
        return self.tensors["losses"]

    @property
    def scales(self) -> Tensor:
        return self.tensors["scales"]

    @property
    def evaluations(self) -> Tensor:
        """How often each minibatch was evaluated."""
        return self.tensors["evaluations"]

    @property
    def pairs(self) -> Tensor:
        """How many pairs the history of each minibatch holds."""
        return self._filled().sum(1)

    def history(self, i: int, size: int) -> tuple[Tensor, Tensor]:
        """S and Y of minibatch i, oldest first, in the first ``size`` coordinates."""
        filled = self._filled()[i]
        return self.tensors["history_s"][i, filled, :size], self.tensors["history_y"][i, filled, :size]

    def hessian(self, i: int) -> Tensor:
        """H_i as a matrix."""
        return self._low_rank(i) + float(self.scales[i]) * torch.eye(self.positions.shape[1], dtype=torch.float64)

    def total_hessian(self, size: int) -> Tensor:
        """Σ H_i in the first ``size`` coordinates."""
        return self.tensors["total"][:size, :size] + float(self.scales.sum()) * torch.eye(size, dtype=torch.float64)

    def total_gradient(self, x: Tensor) -> Tensor:
        """∇G(x) = Σ ∇f_i + H_i (x − x_i)."""
        return (self.gradients + self.products(x - self.positions)).sum(0)

    def products(self, offsets: Tensor) -> Tensor:
        """H_i times row i, for all i."""
        V, values = self.tensors["vectors"], self.tensors["values"]
        inside = values * (V @ offsets[:, :, None])[:, :, 0]
        return self.scales[:, None] * offsets + (inside[:, None, :] @ V)[:, 0, :]

    def predicted(self, i: int, x: Tensor) -> float:
        """g_i(x)."""
        offset = x - self.positions[i]
        V, values = self.tensors["vectors"][i], self.tensors["values"][i]
        curvature = float(values @ (V @ offset) ** 2) + float(self.scales[i]) * float(offset @ offset)
        return float(self.losses[i]) + float(self.gradients[i] @ offset) + 0.5 * curvature

    def record(self, i: int, x: Tensor, f: float, g: Tensor) -> None:
        """Minibatch i was evaluated at x: the differences from the last time enter its history."""
        if self.evaluations[i] > 0:
            s, y = x - self.positions[i], g - self.gradients[i]
            rounding = 4.0 * self.eps * max(float(g.norm()), float(self.gradients[i].norm()))
            if is_informative(s, y, rounding) and not self.contradicted(i, s, f, g):
                for name, row in (("history_s", s), ("history_y", y)):
                    rows = self.tensors[name][i]
                    rows.copy_(rows.roll(-1, 0))
                    rows[-1] = row
        self.positions[i], self.gradients[i], self.losses[i] = x, g, f
        self.evaluations[i] += 1

    def contradicted(self, i: int, s: Tensor, f: float, g: Tensor) -> bool:
        """Do the two losses say that one of the gradients cannot be, the one at hand or the one before it?

        Of a quadratic f − f_i − ∇f_i·s = f_i − f + ∇f·s = ½ s·y: a curvature that is far larger than either is none.
        """
        change = f - float(self.losses[i])
        before, after = float(self.gradients[i] @ s), float(g @ s)
        seen = min(abs(change - before), abs(after - change)) + self.eps * max(abs(f), abs(float(self.losses[i])))
        return abs(after - before) > IMPLAUSIBLE * seen

    def refit(self, i: int, size: int) -> None:
        """H_i from the history of minibatch i."""
        old = self._low_rank(i)
        if int(self.pairs[i]) == 0:
            none = torch.zeros(0, dtype=torch.float64)
            new = Fit(self._scale_without_history(i, size), none, none.reshape(0, size))
        else:
            S, Y = self.history(i, size)
            new = fit(S, Y, self.condition, float(self.scales.max()), rcond=self.eps**0.5)
        self.scales[i] = new.scale
        for name in ("values", "vectors"):
            self.tensors[name][i] = 0.0
        self.tensors["values"][i, : len(new.values)] = new.values
        self.tensors["vectors"][i, : len(new.values), :size] = new.vectors
        self.tensors["total"] += self._low_rank(i) - old

    def rotate(self, T: Tensor, origin: Tensor, min_kept: float = 0.0) -> None:
        """New coordinates T (x − origin); every H_i becomes T H_i Tᵀ.

        Pairs of which less than ``min_kept`` of the length of s is left are forgotten: y without most
        of its s would pass for a far too large curvature.
        """
        old, lengths = T.shape[1], self.tensors["history_s"].norm(dim=-1)
        self.positions.sub_(torch.where(self.evaluations[:, None] > 0, origin, 0.0))
        for name in ("positions", "gradients", "history_s", "history_y", "vectors"):
            self.tensors[name].copy_(padded(self.tensors[name][..., :old] @ T.t(), self.positions.shape[1]))
        self._forget_pairs(shorter_than=min_kept * lengths)
        # Anew from its parts, so that no rounding adds up.
        V = self.tensors["vectors"].flatten(0, 1)
        self.tensors["total"].copy_((self.tensors["values"].flatten() * V.t()) @ V)

    def _filled(self) -> Tensor:
        return self.tensors["history_s"].ne(0.0).any(-1)

    def _forget_pairs(self, shorter_than: Tensor) -> None:
        S, Y = self.tensors["history_s"], self.tensors["history_y"]
        lengths, products = S.norm(dim=-1), (S * Y).sum(-1).abs()
        lost = (lengths < shorter_than) | (products <= UNRELATED * lengths * Y.norm(dim=-1))
        for rows in (S, Y):
            rows[lost] = 0.0

    def _low_rank(self, i: int) -> Tensor:
        V = self.tensors["vectors"][i]
        return (self.tensors["values"][i] * V.t()) @ V

    def _scale_without_history(self, i: int, size: int) -> float:
        """The curvature that is usual among the others; at the very start, the initial curvature."""
        others = (self.pairs > 0).nonzero()[:, 0]
        if len(others) > 0:
            H = self.tensors["total"][:size, :size] - self._low_rank(i)[:size, :size]
            eigenvalues = torch.linalg.eigvalsh(H) + float(self.scales[others].sum())
            return float(eigenvalues.quantile(0.5)) / len(others)
        # A step so short that no gradient changed: the next must be longer.
        return self.initial_curvature / 10.0 ** max(0, int(self.evaluations.max()) - 1)


def shapes(batches: int, dimensions: int, history_size: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What a model keeps, by name: shape and dtype."""
    N, K, L = batches, dimensions, history_size
    floats: dict[str, tuple[int, ...]] = {
        "positions": (N, K),
        "gradients": (N, K),
        "losses": (N,),
        "history_s": (N, L, K),
        "history_y": (N, L, K),
        "scales": (N,),
        "values": (N, 2 * L),
        "vectors": (N, 2 * L, K),
        "total": (K, K),
    }
    return {**{name: (shape, torch.float64) for name, shape in floats.items()}, "evaluations": ((N,), torch.int64)}


def padded(rows: Tensor, width: int) -> Tensor:
    """Zeros after the last column."""
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]))


def cholesky_factor(H: Tensor, condition: float) -> Tensor:
    """L with L Lᵀ = H; a sum that rounding has made indefinite is repaired like a single H_i.

    >>> cholesky_factor(torch.diag(torch.tensor([4.0, 9.0])), 1e8).diagonal()
    tensor([2., 3.])
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        eigenvalues, rotation = torch.linalg.eigh(H)
        root = repaired(eigenvalues, condition, float(eigenvalues.abs().max())).sqrt()
        upper: Tensor = torch.linalg.qr((rotation * root).t()).R
        factor = upper.t() * upper.diagonal().sign()
    return factor
