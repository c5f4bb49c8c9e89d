"""The quasi-Newton direction d = H·g from curvature pairs and an initial H0.

Two routes to the same answer, one signature. Both spend ``g``: it comes back overwritten.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from adaqn.core.history import Pairs
from adaqn.core.products import Reduce, add_combination, dots, local


class InitialScaling(Protocol):
    """H0: any symmetric positive definite operator."""

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        """out ← H0·v, where ``out`` is not ``v``."""
        ...


def applied(h0: InitialScaling, v: Tensor, out: Tensor) -> Tensor:
    """out ← H0·v, also by an operator that returns a tensor of its own instead of writing into ``out``."""
    found = h0.apply(v, out)
    if found is out:
        return out
    if not isinstance(found, Tensor) or found.shape != out.shape:
        said = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise TypeError(
            f"{type(h0).__name__}.apply(v, out) must return H0·v, a vector of {len(out)} numbers, and returned {said}: "
            "write it into out, and return out"
        )
    return out.copy_(found)


class Direction(Protocol):
    """What :func:`two_loop` and :func:`gram` have in common."""

    def __call__(self, g: Tensor, pairs: Pairs, h0: InitialScaling, out: Tensor, reduce: Reduce = local) -> Tensor: ...


def two_loop(g: Tensor, pairs: Pairs, h0: InitialScaling, out: Tensor, reduce: Reduce = local) -> Tensor:
    """Algorithm 2 as printed: 2m sequential products. For readers and for tests."""
    q, stored, alphas = g, list(pairs), []
    for s, y, sy in reversed(stored):  # l. 3
        alpha = reduce(dots(s[None], q)) / sy  # l. 4
        add_combination(q, y[None], -alpha)  # l. 5
        alphas.append(alpha)
    r = applied(h0, q, out)  # l. 7
    for (s, y, sy), alpha in zip(stored, reversed(alphas), strict=True):  # l. 8
        beta = reduce(dots(y[None], r)) / sy  # l. 9
        add_combination(r, s[None], alpha - beta)  # l. 10
    return r


def gram(
    g: Tensor, pairs: Pairs, h0: InitialScaling, out: Tensor, reduce: Reduce = local, s_dot_g: Tensor | None = None
) -> Tensor:
    """Algorithm 2 with the repeated vector work taken out: four products with the history.

    With R the upper triangle of S·Yᵀ by age and D its diagonal, the α of the backward loop and
    the α − β of the forward loop solve two triangular systems of size m::

        R a = S g        r = H0 (g − Yᵀa)        Rᵀ c = D a − Y r        d = r + Sᵀ c

    R changes only when a pair is stored, and so :class:`adaqn.core.history.Pairs` keeps its inverse,
    found by substitution in float64, without regularisation. Nothing is read back by the host.
    Nearly parallel pairs do no harm: their R is close to a triangle of equal numbers, whose inverse
    has no large entry. Pairs whose R could not be inverted without overflow are never in memory
    together.

    ``s_dot_g`` is S g where the caller has it: with a vector in parts it travels with another sum of the same step.
    """
    if len(pairs) == 0:
        return applied(h0, g, out)
    S, Y, R_inverse = pairs.S, pairs.Y, pairs.inverse
    a = R_inverse.mv(reduce(dots(S, g)) if s_dot_g is None else s_dot_g)
    r = applied(h0, add_combination(g, Y, -a), out)
    c = R_inverse.t().mv(pairs.D * a - reduce(dots(Y, r)))
    return add_combination(r, S, c)
