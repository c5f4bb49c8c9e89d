"""H0 by name."""

from __future__ import annotations

from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adagrad, Adam, BarzilaiBorwein, RMSProp, Scaling
from adaqn.core.secant import KroneckerSecant, Secant

SCALINGS: dict[str, type[Scaling]] = {
    "identity": Scaling,
    "barzilai_borwein": BarzilaiBorwein,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "kronecker": Kronecker,
    "secant": Secant,
    "kronecker_secant": KroneckerSecant,
}


def make_scaling(name: str) -> Scaling:
    """The scaling of that name, with its own defaults."""
    if name not in SCALINGS:
        raise ValueError(f"scaling must be one of {sorted(SCALINGS)} or a Scaling, got {name!r}")
    return SCALINGS[name]()
