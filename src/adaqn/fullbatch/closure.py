"""The closure: called, checked, counted, and agreed upon by all processes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from adaqn.parameters.flat import NO_PRINT, FlatParameters
from adaqn.parameters.processes import check_same, local_part

Closure = Callable[..., Any]
"""Clears the gradients, computes the loss, calls backward and returns the loss; it may take a ``seed``."""
NO_GRADIENT = "the closure made no gradient: it must clear the gradients, call loss.backward() and return the loss"
UNSEEN = " (if it writes the gradients through .data or .numpy(), set them to None before the first step)"
"""Values that are written that way are seen by comparing, unless they are those that were there."""


Prints = Sequence[float]
"""One number of each process, by which vectors are compared."""


class BudgetSpentError(Exception):
    """One more evaluation was asked for than there are."""


@dataclass
class Sample:
    """The data behind the loss: another number is another sample."""

    number: int = 0
    unseen_writes: bool = False
    """Has the closure written gradients in a way that torch does not count? Then only values tell of a new one, and
    the same values may be new: at the beginning of a step they are those of the end of the last one."""


class Evaluations:
    """Calls of one closure within one step.

    Args:
        closure: the user's.
        params: all parameters, to see whether their gradients were made anew.
        budget: the largest number of calls.
        seed: handed to a closure that takes one: the same sample throughout a step, another one in the next.
        sample: its number changes within a call if the closure takes another one.
    """

    def __init__(self, closure: Closure, params: Sequence[Tensor], budget: int, seed: int, sample: Sample) -> None:
        if not callable(closure):
            raise TypeError(f"step() needs a closure that clears the gradients, calls backward and returns the loss; "
                            f"got {closure!r}")  # fmt: skip
        self.closure, self.params, self.budget, self.sample = closure, params, budget, sample
        self.seed = {"seed": seed} if takes_seed(closure) else {}
        self.count = 0
        self.first: Any = None
        """What the first call returned: what ``step`` returns."""
        self.stale = False
        """Did the first call leave the gradients as they were? Nobody knows of which weights they are."""
        self.apart = False
        """Did the last digits of the weights differ between the processes?"""
        self.is_unchanged: Callable[[], bool] | None = None
        """Are the gradients what the last call left? Told by who read them then; before that there are copies."""

    @property
    def left(self) -> int:
        return self.budget - self.count

    def __call__(self, flat: FlatParameters) -> float:
        """The loss, its mean over the processes; the gradients lie in ``.grad``.

        One message: whether there was an error, the loss, and what must be the same in all processes.
        """
        if self.left <= 0:
            raise BudgetSpentError
        self.count += 1
        loss, prints, error = math.nan, (*NO_PRINT, *NO_PRINT), None
        try:
            with flat.evaluated():
                loss = self._loss()
            if flat.processes.count > 1:
                prints = (*flat.print_of_weights(), *flat.print_of_gradients())
        except Exception as raised:
            error = raised
        rows = flat.processes.agreed("the closure", error, loss, self.stale, self.sample.number, *prints)
        losses, stale, samples, *columns = zip(*rows, strict=True)
        self.stale = any(stale)
        self.sample.number = int(max(samples))  # a new one in one process is a new one of the mean
        self._compare(*columns)
        mean: float = sum(losses) / len(losses)
        return mean

    def _compare(self, weights: Prints, norms: Prints, gradients: Prints, their_norms: Prints) -> None:
        """Have all processes the same weights and gradients? Only the last digits of weights may differ."""
        self.apart = False
        if all(map(math.isfinite, (*norms, *their_norms))):
            check_same(weights, norms)
            check_same(gradients, their_norms)
            self.apart = len(set(weights)) > 1 or len(set(norms)) > 1

    def _loss(self) -> float:
        before = [_Mark(p) for p in self.params]
        copies = None if self.is_unchanged or self.sample.unseen_writes else [_copy(p) for p in self.params]
        with torch.enable_grad():
            returned = self.closure(**self.seed)
        if self.count == 1:
            self.first = returned
        value = checked(returned)
        # A parameter without a gradient before and after says nothing; one that has the same as before does.
        present = any(p.grad is not None for p in self.params)
        if present and all(mark.is_of(p) for mark, p in zip(before, self.params, strict=True)):
            self._look_at_values(copies)
            if not self.sample.unseen_writes:
                if self.count > 1:
                    raise RuntimeError(NO_GRADIENT)
                self.stale, value = True, math.nan
        if not present and any(p.requires_grad for p in self.params):
            raise RuntimeError(NO_GRADIENT)
        return value

    def _look_at_values(self, copies: list[Tensor | None] | None) -> None:
        """The gradients are the same tensors, and torch counted no change: were they written all the same?"""
        if self.is_unchanged is not None:
            self.sample.unseen_writes |= not self.is_unchanged()
        elif copies is not None:
            self.sample.unseen_writes |= not all(map(_is_copy, self.params, copies))


def _copy(p: Tensor) -> Tensor | None:
    return None if p.grad is None or p.grad.layout != torch.strided else local_part(p.grad).clone()


def _is_copy(p: Tensor, copy: Tensor | None) -> bool:
    return p.grad is None or copy is None or same_values(local_part(p.grad), copy)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Also where both are nan."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def takes_seed(closure: Closure) -> bool:
    """Has it an argument of that name that must be given? One with a default is the user's own business.

    >>> takes_seed(lambda seed: 0.0), takes_seed(lambda: 0.0), takes_seed(lambda seed=3: 0.0)
    (True, False, False)
    """
    if "seed" in getattr(closure, "keywords", ()):  # of functools.partial
        return False
    try:
        seed = inspect.signature(closure, follow_wrapped=False).parameters.get("seed")
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False
    return seed is not None and seed.default is seed.empty and seed.kind is not seed.POSITIONAL_ONLY


def checked(returned: Any) -> float:
    """The loss as a number."""
    is_number = isinstance(returned, int | float) and not isinstance(returned, bool)
    is_scalar = isinstance(returned, Tensor) and returned.numel() == 1 and not returned.is_complex()
    kind = getattr(getattr(returned, "dtype", None), "kind", "")  # of numpy's arrays and scalars
    is_numpy = kind in ("f", "i", "u") and getattr(returned, "shape", None) == ()
    if not (is_number or is_scalar or is_numpy):
        said = f"a tensor of shape {tuple(returned.shape)} and {returned.dtype}" if isinstance(returned, Tensor) else (
            "nothing (None)" if returned is None else f"{type(returned).__name__}"
        )  # fmt: skip
        raise TypeError(f"the closure must return the loss, a real tensor with one element, and returned {said}")
    return float(returned.detach() if isinstance(returned, Tensor) else returned)


class _Mark:
    """A gradient as it was, which it does not keep alive: a new tensor may have the address of the old one."""

    def __init__(self, p: Tensor) -> None:
        self.gradient = None if p.grad is None else TensorWeakRef(p.grad)
        self.version = 0 if p.grad is None else p.grad._version

    def is_of(self, p: Tensor) -> bool:
        """Was it neither made anew nor added to nor cleared?"""
        if self.gradient is None or p.grad is None:
            return self.gradient is None and p.grad is None
        return self.gradient() is p.grad and self.version == p.grad._version
