"""RES's direction: an L-BFGS matrix bounded from below, inverted exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaqn.core.checks import at_least_zero
from adaqn.core.direction import InitialScaling
from adaqn.core.history import Pairs
from adaqn.core.products import Reduce, add_combination, dots, local
from adaqn.core.scaling import BarzilaiBorwein


class Regularised:
    """d = B̂⁻¹g + Γg with B̂ = B + δI, and B the L-BFGS matrix of the pairs on top of H0⁻¹ = σI.

    The pairs hold s and y − δs, so that B̂s is the measured y for the newest one. In compact form, with
    the rows of S and Y by age, L the strictly lower triangle of S·Yᵀ and D its diagonal::

        B = σI − Uᵀ M⁻¹ U        U = (σS; Y)        M = (σ S·Sᵀ, L; Lᵀ, −D)

    and so by Woodbury, with τ = σ + δ::

        B̂⁻¹ g = g/τ + Uᵀ (M − U·Uᵀ/τ)⁻¹ U g / τ²

    Two m × m products more than the usual recursion, a system of size 2m, in float64. Where rounding leaves no
    descent direction, H0 alone takes its place.
    """

    def __init__(self, delta: float, gamma: float) -> None:
        self.delta, self.gamma = at_least_zero("delta", delta), at_least_zero("gamma", gamma)

    def __call__(self, g: Tensor, pairs: Pairs, h0: InitialScaling, out: Tensor, reduce: Reduce = local) -> Tensor:
        if not isinstance(h0, BarzilaiBorwein):
            raise TypeError(
                f"RES needs a scaling that is a number, such as Barzilai-Borwein's; got {type(h0).__name__}"
            )
        sigma = 1.0 / h0.factor
        tau = sigma + self.delta
        torch.div(g, tau, out=out)
        if len(pairs):
            correction, size = self._correction(g, pairs, sigma, tau, reduce)
            if correction is not None:
                add_combination(out, pairs.S, correction[:size] * sigma)
                add_combination(out, pairs.Y, correction[size:])
            descent = float(reduce(dots(out[None], g)))
            if not (math.isfinite(descent) and descent > 0.0):
                torch.div(g, tau, out=out)
        return out.add_(g, alpha=self.gamma)

    def _correction(
        self, g: Tensor, pairs: Pairs, sigma: float, tau: float, reduce: Reduce
    ) -> tuple[Tensor | None, int]:
        """The weights of the rows of S (to be multiplied by σ) and of Y, by slot."""
        S, Y, size = pairs.S, pairs.Y, len(pairs)
        order = torch.tensor(pairs.order, device=g.device)
        by_slot = torch.argsort(order)
        wide_s, wide_y = S.to(g.dtype), Y.to(g.dtype)
        SS, SY, YY = (reduce(a @ b.t()) for a, b in ((wide_s, wide_s), (wide_s, wide_y), (wide_y, wide_y)))
        SS, SY, YY = (product.double()[order][:, order] for product in (SS, SY, YY))
        L, D = SY.tril(-1), torch.diag(SY.diagonal())
        M = torch.cat([torch.cat([sigma * SS, L], 1), torch.cat([L.t(), -D], 1)])
        UU = torch.cat([torch.cat([sigma**2 * SS, sigma * SY], 1), torch.cat([sigma * SY.t(), YY], 1)])
        Ug = torch.cat([sigma * reduce(dots(S, g))[order], reduce(dots(Y, g))[order]])
        solved, info = torch.linalg.solve_ex(M - UU / tau, Ug)
        if int(info) != 0 or not bool(solved.isfinite().all()):
            return None, size
        weights = solved / tau**2
        return torch.cat([weights[:size][by_slot], weights[size:][by_slot]]), size
