"""H0 by name."""

from __future__ import annotations

from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adagrad, Adam, BarzilaiBorwein, RMSProp, Scaling

SCALINGS: dict[str, type[Scaling]] = {
    "identity": Scaling,
    "barzilai_borwein": BarzilaiBorwein,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "kronecker": Kronecker,
}


def make_scaling(name: str, eps: float | None) -> Scaling:
    """The scaling of that name; ``eps=None`` is its own default."""
    if name not in SCALINGS:
        raise ValueError(f"scaling must be one of {sorted(SCALINGS)} or a Scaling, got {name!r}")
    kind = SCALINGS[name]
    if eps is None:
        return kind()
    if not issubclass(kind, Adagrad | RMSProp):
        raise ValueError(f"scaling_eps={eps} has no meaning with scaling={name!r}: leave it out")
    return kind(eps=eps)
