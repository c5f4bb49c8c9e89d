"""H0, the initial scaling of the direction: a symmetric positive definite operator.

A scaling sees every gradient once (``update``) and is applied once per step (``apply``). What it keeps
between steps it declares, so that the optimizer can make it, save it and carry it over: vectors as long
as all parameters together, tensors of any shape per parameter, and plain numbers per parameter. Diagonal ones are
below; an operator that is not diagonal needs nothing else of the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from adaqn.core.ages import Ages
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
    skips_by_itself = True
    """Does ``update`` of this very class change nothing while ``self.ok`` is 0? Where a class does not say so, copies
    are kept and put back."""

    def __init__(self) -> None:
        self.vectors: dict[str, Tensor] = {}
        self.tensors: list[dict[str, Tensor]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.cuts: list[int | None] = []
        self.ok: Tensor | None = None
        """During an update: 1 on the device if the gradient is finite and 0 if not; ``None`` if it is finite."""

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

    def see(self, g: Tensor, present: Sequence[int], ok: Tensor | None = None) -> None:
        """The gradient of this step; what is known of parameters without one stays as it is.

        ``ok`` is a number on the device: where it is 0, for a gradient that is not finite, and g zero in its place,
        no tensor of this scaling changes, but for bases that are due at this step. The host does not know, and its
        numbers count that gradient, too.
        """
        ours, for_some = _writers(type(self))  # type: ignore[arg-type]
        copied = ok is not None and not ours
        kept = [(tensor, tensor.clone()) for tensor in self._all_known()] if copied else []
        self.ok = ok
        if len(present) == len(self.shapes):
            self.update(g)
        elif for_some:
            self.update_some(g, present)
        else:
            Scaling.update_some(self, g, present)
        for tensor, before in kept:
            tensor.copy_(torch.where(self.ok.gt(0.0), tensor, before))  # type: ignore[union-attr]
        self.ok = None

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

    def _all_known(self) -> list[Tensor]:
        return [tensor for kept in (self.vectors, *self.tensors) for tensor in kept.values()]

    def _remembered(self, decay: float) -> float | Tensor:
        """By what an average is multiplied: its decay, and 1 for a gradient that is not finite."""
        return decay if self.ok is None else torch.rsub(self.ok.double(), 1.0, alpha=1.0 - decay)

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
    skips_by_itself = True

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
    skips_by_itself = True

    def __init__(self, decay: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__()
        self.decay = decay_in_range("decay", decay)
        self.eps = positive_number("eps of the scaling", eps)

    def update(self, g: Tensor) -> None:
        self.update_some(g, range(len(self.shapes)))

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        self._average("square_avg", g, present)

    def _average(self, name: str, v: Tensor, present: Sequence[int]) -> None:
        """The running average of v², of these parameters."""
        here = present_parts(self.sizes, set(present))
        if not here:
            return
        averages, parts = parts_of(self.vectors[name], here), parts_of(v, here)
        torch._foreach_mul_(averages, self._remembered(self.decay))
        torch._foreach_addcmul_(averages, parts, parts, 1.0 - self.decay)

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
    skips_by_itself = True

    def __init__(self, decay: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__(decay, eps)
        self.ages = Ages(0, torch.device("cpu"))

    @property
    def steps(self) -> list[int]:
        """The finite gradients that each parameter has had: a read from the device."""
        return self.ages.values()

    def reset(self) -> None:
        super().reset()
        self.ages = Ages(len(self.shapes), self.vectors["square_avg"].device)

    def update_some(self, g: Tensor, present: Sequence[int]) -> None:
        super().update_some(g, present)
        self.ages.add(present, self.ok)

    def roots(self, out: Tensor) -> Tensor:
        """out ← √v̂ + ε."""
        torch.sqrt(self.vectors["square_avg"], out=out)
        corrections = self.ages.powers(self.decay).neg_().add_(1.0).rsqrt_()
        torch._foreach_mul_(*self._by_age(out, corrections))
        return out.add_(self.eps)

    def _by_age(self, vector: Tensor, values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Parts of the vector, and for each the value of its age."""
        found = runs(self.sizes, self.ages.kinds)
        parts = torch.split(vector, [part.stop - part.start for part, _ in found])
        by_kind = values.unbind()
        return list(parts), [by_kind[kind] for _, kind in found]

    def numbers(self, index: int) -> dict[str, float]:
        return {"step": self.steps[index]}

    def load_numbers(self, index: int, numbers: dict[str, float]) -> None:
        self.ages.load(index, int(numbers["step"]))


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


def present_parts(sizes: Sequence[int], present: set[int]) -> list[slice]:
    """Where these parameters lie in a vector, neighbours in one slice.

    >>> present_parts([2, 3, 1], {0, 1, 2}), present_parts([2, 3, 1], {0, 2})
    ([slice(0, 6, None)], [slice(0, 2, None), slice(5, 6, None)])
    """
    return [part for part, _ in runs(sizes, [0 if i in present else None for i in range(len(sizes))])]


def parts_of(vector: Tensor, parts: Sequence[slice]) -> list[Tensor]:
    """These stretches of a vector, one behind the other, as views that are made in one operation.

    >>> parts_of(torch.arange(5), [slice(0, 2), slice(4, 5)])
    [tensor([0, 1]), tensor([4])]
    """
    if [(part.start, part.stop) for part in parts] == [(0, len(vector))]:
        return [vector]
    lengths, end = list[int](), 0
    for part in parts:
        lengths += [part.start - end, part.stop - part.start]
        end = part.stop
    return list(torch.split(vector, [*lengths, len(vector) - end])[1:-1:2])


@cache
def _writers(scaling: type[Scaling]) -> tuple[bool, bool]:
    """(Does its update skip by itself? Is ``update_some`` at least as much its own as ``update``?)."""
    line = scaling.__mro__
    update, some = (next(c for c in line if name in vars(c)) for name in ("update", "update_some"))
    first = min(update, some, key=line.index)
    return "skips_by_itself" in vars(first), line.index(some) <= line.index(update)
