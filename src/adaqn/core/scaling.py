"""H0, the initial scaling of the direction: a symmetric positive definite operator.

A scaling sees every gradient once (``update``) and is applied once per step (``apply``). It owns
vectors as long as the parameters and says which, so that the optimizer can save them; numbers that
are counted per parameter go through ``numbers`` and ``load_numbers``. Diagonal ones are below; an
operator that is not diagonal needs nothing else of the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adaqn.core.runs import runs


class Scaling:
    """The identity, and the base of the others."""

    vector_names: tuple[str, ...] = ()
    """The vectors of length n that this scaling keeps between steps."""
    number_names: tuple[str, ...] = ()
    """The plain numbers that it keeps per parameter."""
    initial_value: float = 0.0

    def __init__(self) -> None:
        self.vectors: dict[str, Tensor] = {}

    def build(self, vectors: dict[str, Tensor], sizes: Sequence[int]) -> None:
        """Take over one zeroed buffer per name; ``sizes`` are the lengths of the parameters in it."""
        self.vectors = vectors
        self.reset()

    def reset(self) -> None:
        """Forget every gradient seen (D3)."""
        for vector in self.vectors.values():
            vector.fill_(self.initial_value)

    def update(self, g: Tensor) -> None:
        """See the gradient of this step."""

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        """out ← H0·v, where ``out`` is not ``v``."""
        return out.copy_(v)

    def on_stored(self, sy: float, yy: float) -> None:
        """A pair with these products went into memory."""

    def on_cleared(self) -> None:
        """The memory of pairs was emptied."""

    def numbers(self, index: int) -> dict[str, float]:
        """The value of each of ``number_names`` for the parameter of that index."""
        return {}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        """Take back what ``numbers`` gave."""


class BarzilaiBorwein(Scaling):
    """H0 = (s·y / y·y) I of the newest pair; ``initial`` times the identity while there is none."""

    number_names: tuple[str, ...] = ("factor",)

    def __init__(self, initial: float = 1.0) -> None:
        super().__init__()
        self.initial = self.factor = _positive("initial_scaling", initial)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.mul(v, self.factor, out=out)

    def on_stored(self, sy: float, yy: float) -> None:
        self.factor = sy / yy

    def on_cleared(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.factor = self.initial

    def numbers(self, index: int) -> dict[str, float]:
        return {"factor": self.factor}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.factor = numbers["factor"]


class Adagrad(Scaling):
    """H0 = 1/√(Σg² + ε), the paper's. ε is the starting value of the sum."""

    vector_names = ("sum",)

    def __init__(self, eps: float = 1e-4) -> None:
        super().__init__()
        self.initial_value = _positive("scaling_eps", eps)

    def update(self, g: Tensor) -> None:
        self.vectors["sum"].addcmul_(g, g)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.rsqrt(self.vectors["sum"], out=out).mul_(v)


class RMSProp(Scaling):
    """H0 = 1/(√v + ε) with v the exponential average of g², as in torch.optim.RMSprop."""

    vector_names = ("square_avg",)

    def __init__(self, decay: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__()
        self.decay = _decay(decay)
        self.eps = _positive("scaling_eps", eps)

    def update(self, g: Tensor) -> None:
        self.vectors["square_avg"].mul_(self.decay).addcmul_(g, g, value=1.0 - self.decay)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        root = torch.sqrt(self.vectors["square_avg"], out=out).add_(self.eps)
        return torch.div(v, root, out=out)


class Adam(RMSProp):
    """H0 = 1/(√v̂ + ε) with v̂ the bias-corrected average of g², as in torch.optim.Adam.

    Steps are counted per parameter: one that joins late has its own, short, bias correction.
    """

    number_names = ("step",)

    def __init__(self, decay: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__(decay, eps)
        self.sizes: list[int] = []
        self.steps: list[int] = []

    def build(self, vectors: dict[str, Tensor], sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        super().build(vectors, sizes)

    def reset(self) -> None:
        super().reset()
        self.steps = [0] * len(self.sizes)

    def update(self, g: Tensor) -> None:
        super().update(g)
        self.steps = [step + 1 for step in self.steps]

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        root = torch.sqrt(self.vectors["square_avg"], out=out)
        for part, step in runs(self.sizes, self.steps):
            root[part].mul_(1.0 / math.sqrt(1.0 - self.decay ** max(step, 1)))
        return torch.div(v, root.add_(self.eps), out=out)

    def numbers(self, index: int) -> dict[str, float]:
        return {"step": self.steps[index]}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.steps[index] = int(numbers["step"])


SCALINGS: dict[str, type[Scaling]] = {
    "identity": Scaling,
    "barzilai_borwein": BarzilaiBorwein,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
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


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be a positive number, got {value}")
    return value


def _decay(value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"the decay of the scaling must lie in [0, 1), got {value}")
    return value
