"""H0, the initial scaling of the direction: a symmetric positive definite operator.

A scaling sees every gradient once (``update``) and is applied once per step (``apply``). What it keeps
between steps it declares, so that the optimizer can make it, save it and carry it over: vectors as long
as all parameters together, tensors of any shape per parameter, and plain numbers per parameter. Diagonal ones are
below; an operator that is not diagonal needs nothing else of the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from adaqn.core.blocks import Block
from adaqn.core.checks import positive_number

T = TypeVar("T")


class Scaling:
    """The identity, and the base of the others.

    To write one: name what is kept (``vector_names``, ``tensor_shapes``, ``number_names``), learn from a gradient in
    ``update``, and multiply by a symmetric positive definite matrix in ``apply``. All that is kept starts at
    ``initial_value``.
    """

    vector_names: tuple[str, ...] = ()
    """The vectors of length n that this scaling keeps between steps, in ``self.vectors``."""
    number_names: tuple[str, ...] = ()
    """The plain numbers that it keeps per parameter, of at least 0."""
    initial_value: float = 0.0
    elementwise = True
    """Is each number of H0·v made from that number of v alone? Only then may processes have a part of v each."""
    learns_from_pairs = False
    """Does it learn from pairs (``learn``) instead of gradients, once there are any? Only methods for whole gradients
    show it those."""

    def __init__(self) -> None:
        self.vectors: dict[str, Tensor] = {}
        self.tensors: list[dict[str, Tensor]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.cuts: list[int | None] = []

    @property
    def sizes(self) -> list[int]:
        """The length of each parameter in a vector."""
        return [math.prod(shape) for shape in self.shapes]

    def tensor_shapes(self, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Name → shape of what is kept for one parameter of ``shape``, in ``self.tensors[index]``."""
        return {}

    def blocks(self, shape: Sequence[int]) -> list[Block] | None:
        """The blocks of a parameter of ``shape`` as a matrix, over which H0 is block-diagonal.

        ``None``: element-wise, it may be cut anywhere.
        """
        return None

    def build(
        self,
        vectors: dict[str, Tensor],
        shapes: Sequence[Sequence[int]],
        tensors: Sequence[dict[str, Tensor]] | None = None,
        cuts: Sequence[int | None] | None = None,
    ) -> None:
        """Take over one buffer per name, and per parameter the tensors of ``tensor_shapes``.

        ``shapes`` are those of the parameters, one behind the other in each vector. ``cuts`` say for each at which
        dimension the columns of its matrix begin; ``None`` leaves that to the scaling.
        """
        self.vectors, self.shapes = vectors, [tuple(shape) for shape in shapes]
        self.cuts = list(cuts) if cuts is not None else [None] * len(self.shapes)
        self.tensors = list(tensors) if tensors is not None else [{} for _ in shapes]
        self.reset()

    def reset(self) -> None:
        """Forget every gradient seen (D3)."""
        for kept in (self.vectors, *self.tensors):
            for tensor in kept.values():
                tensor.fill_(self.initial_value)

    def update(self, g: Tensor) -> None:
        """See the gradient of this step."""

    def see(self, g: Tensor, present: Sequence[int]) -> None:
        """The gradient of this step; what is known of parameters without one stays as it is."""
        if len(present) == len(self.shapes):
            self.update(g)
        else:
            self.update_some(g, present)

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        """See a gradient that only the parameters of these indices have; what is known of the others stays."""
        missing = sorted(set(range(len(self.shapes))) - set(present))
        kept = [(tensor, tensor.clone()) for i in missing for tensor in self._known(i)]
        numbers = [self.numbers(i) for i in missing]
        self.update(g)
        for tensor, before in kept:
            tensor.copy_(before)
        for i, values in zip(missing, numbers, strict=True):
            self.load_numbers(i, values)

    def learn(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        """See a pair; ``rms`` is the root mean square of s, over all processes.

        Returns y·H0 y with what was learnt, where that comes with it; ``square`` finds it anyway.
        """

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        """out ← H0·v, where ``out`` is not ``v``."""
        return out.copy_(v)

    def square(self, v: Tensor) -> Tensor:
        """v·H0 v, of this process's part of v."""
        return v.dot(self.apply(v, torch.empty_like(v)))

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        """out ← H0⁻¹·v, where ``out`` is not ``v``. Only damping needs it."""
        return out.copy_(v)

    def has_inverse(self) -> bool:
        """Does ``apply_inverse`` belong to ``apply``? Not where a subclass has changed only the latter."""
        line = type(self).__mro__
        applied, inverted = (next(c for c in line if name in vars(c)) for name in ("apply", "apply_inverse"))
        return line.index(inverted) <= line.index(applied)

    def on_stored(self, sy: float, yy: float) -> None:
        """A pair with these products went into memory."""

    def on_cleared(self) -> None:
        """The memory of pairs was emptied."""

    def numbers(self, index: int) -> dict[str, float]:
        """The value of each of ``number_names`` for the parameter of that index."""
        return {}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        """Take back what ``numbers`` gave."""

    def own_moments(self, index: int) -> dict[str, Tensor]:
        """Of the vectors that lie in coordinates of the matrices kept for a parameter: in its own, by their names.

        From these alone a parameter can begin again (``restart``) where it has other blocks.
        """
        return {}

    def restart(self, index: int) -> None:
        """Forget the matrices of a parameter: its part of the vectors is what ``own_moments`` said of it."""

    def _known(self, index: int) -> list[Tensor]:
        """All tensors of one parameter: its parts of the vectors, and its own."""
        parts = [torch.split(vector, self.sizes)[index] for vector in self.vectors.values()]
        return parts + list(self.tensors[index].values())


class BarzilaiBorwein(Scaling):
    """H0 = (s·y / y·y) I of the newest pair; ``initial`` times the identity while there is none."""

    number_names: tuple[str, ...] = ("factor",)

    def __init__(self, initial: float = 1.0) -> None:
        super().__init__()
        self.initial = self.factor = positive_number("initial_scaling", initial)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.mul(v, self.factor, out=out)

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.div(v, self.factor, out=out)

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
        self.initial_value = positive_number("eps of the scaling", eps)

    def update(self, g: Tensor) -> None:
        self.vectors["sum"].addcmul_(g, g)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.rsqrt(self.vectors["sum"], out=out).mul_(v)

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.sqrt(self.vectors["sum"], out=out).mul_(v)


class RMSProp(Scaling):
    """H0 = 1/(√v + ε) with v the exponential average of g², as in torch.optim.RMSprop."""

    vector_names: tuple[str, ...] = ("square_avg",)

    def __init__(self, decay: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__()
        self.decay = decay_in_range("decay", decay)
        self.eps = positive_number("eps of the scaling", eps)

    def update(self, g: Tensor) -> None:
        self.vectors["square_avg"].mul_(self.decay).addcmul_(g, g, value=1.0 - self.decay)

    def roots(self, out: Tensor) -> Tensor:
        """out ← √v + ε."""
        return torch.sqrt(self.vectors["square_avg"], out=out).add_(self.eps)

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return torch.div(v, self.roots(out), out=out)

    def apply_inverse(self, v: Tensor, out: Tensor) -> Tensor:
        return self.roots(out).mul_(v)


class Adam(RMSProp):
    """H0 = 1/(√v̂ + ε) with v̂ the bias-corrected average of g², as in torch.optim.Adam.

    Steps are counted per parameter: one that joins late has its own, short, bias correction.
    """

    number_names: tuple[str, ...] = ("step",)

    def __init__(self, decay: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__(decay, eps)
        self.steps: list[int] = []

    def reset(self) -> None:
        super().reset()
        self.steps = [0] * len(self.shapes)

    def update(self, g: Tensor) -> None:
        super().update(g)
        self.steps = [step + 1 for step in self.steps]

    def roots(self, out: Tensor) -> Tensor:
        """out ← √v̂ + ε."""
        root = torch.sqrt(self.vectors["square_avg"], out=out)
        for part, step in runs(self.sizes, self.steps):
            root[part].mul_(1.0 / math.sqrt(1.0 - self.decay ** max(step, 1)))
        return root.add_(self.eps)

    def numbers(self, index: int) -> dict[str, float]:
        return {"step": self.steps[index]}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.steps[index] = int(numbers["step"])


def decay_in_range(name: str, value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"the {name} of the scaling must lie in [0, 1), got {value}")
    return value


def runs(sizes: Sequence[int], kinds: Sequence[T | None]) -> list[tuple[slice, T]]:
    """Stretches of the same kind (an age, say), one slice each; parts whose kind is ``None`` are left out.

    >>> runs([2, 3, 1], [7, 7, 4])
    [(slice(0, 5, None), 7), (slice(5, 6, None), 4)]
    >>> runs([2, 3, 1], [7, None, 7])
    [(slice(0, 2, None), 7), (slice(5, 6, None), 7)]
    """
    found: list[tuple[slice, T]] = []
    start = 0
    for size, kind in zip(sizes, kinds, strict=True):
        if kind is not None:
            if found and found[-1] == (slice(found[-1][0].start, start), kind):
                found[-1] = (slice(found[-1][0].start, start + size), kind)
            else:
                found.append((slice(start, start + size), kind))
        start += size
    return found
