"""The closure: called, checked, counted, and agreed upon by all processes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from adaqn.parameters.processes import Processes

Closure = Callable[..., Any]
"""Clears the gradients, computes the loss, calls backward and returns the loss; it may take a ``seed``."""


class BudgetSpentError(Exception):
    """One more evaluation was asked for than there are."""


class Evaluations:
    """Calls of one closure within one step.

    Args:
        closure: the user's.
        params: all parameters, to see whether their gradients were made anew.
        budget: the largest number of calls.
        seed: handed to a closure that takes one: the same sample throughout a step, another one in the next.
    """

    def __init__(self, closure: Closure, params: Sequence[Tensor], budget: int, seed: int) -> None:
        if not callable(closure):
            raise TypeError(f"step() needs a closure that clears the gradients, calls backward and returns the loss; "
                            f"got {closure!r}")  # fmt: skip
        self.closure, self.params, self.budget = closure, params, budget
        self.seed = {"seed": seed} if takes_seed(closure) else {}
        self.count = 0
        self.first: Any = None
        """What the first call returned: what ``step`` returns."""

    @property
    def left(self) -> int:
        return self.budget - self.count

    def __call__(self, processes: Processes) -> float:
        """The loss, its mean over the processes; the gradients lie in ``.grad``."""
        if self.left <= 0:
            raise BudgetSpentError
        self.count += 1
        loss, error = math.nan, None
        try:
            loss = self._loss()
        except Exception as raised:
            error = raised
        rows = processes.agreed("the closure", error, loss)
        return sum(value for (value,) in rows) / len(rows)

    def _loss(self) -> float:
        before = [_mark(p) for p in self.params]
        with torch.enable_grad():
            returned = self.closure(**self.seed)
        if self.count == 1:
            self.first = returned
        value = checked(returned)
        # A parameter without a gradient before and after says nothing; one that has the same as before does.
        if all(p.grad is None for p in self.params) or (
            any(mark is not None for mark in before) and all(map(_is_marked, self.params, before))
        ):
            raise RuntimeError(
                "the closure made no gradient: it must clear the gradients, compute the loss, call loss.backward() and "
                "return the loss"
            )
        return value


def takes_seed(closure: Closure) -> bool:
    """Has it an argument of that name?

    >>> takes_seed(lambda seed: 0.0), takes_seed(lambda: 0.0)
    (True, False)
    """
    try:
        return "seed" in inspect.signature(closure).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False


def checked(returned: Any) -> float:
    """The loss as a number."""
    is_number = isinstance(returned, int | float) and not isinstance(returned, bool)
    is_scalar = isinstance(returned, Tensor) and returned.numel() == 1 and not returned.is_complex()
    if not (is_number or is_scalar):
        said = f"a tensor of shape {tuple(returned.shape)} and {returned.dtype}" if isinstance(returned, Tensor) else (
            "nothing (None)" if returned is None else f"{type(returned).__name__}"
        )  # fmt: skip
        raise TypeError(f"the closure must return the loss, a real tensor with one element, and returned {said}")
    return float(returned.detach() if isinstance(returned, Tensor) else returned)


Mark = tuple[TensorWeakRef, int] | None
"""Of a gradient as it is: which tensor, and how often it was written to. It keeps none alive."""


def _mark(p: Tensor) -> Mark:
    return None if p.grad is None else (TensorWeakRef(p.grad), p.grad._version)


def _is_marked(p: Tensor, mark: Mark) -> bool:
    """Has the parameter still that gradient? One that was made anew may lie where the old one lay, with its id."""
    if p.grad is None or mark is None:
        return p.grad is None and mark is None
    return mark[0]() is p.grad and mark[1] == p.grad._version
