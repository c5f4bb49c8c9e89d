"""One evaluation of one minibatch for SFO: which, and what came out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaqn.parameters.flat import FlatParameters

Closure = Callable[[], Any]


class Point(NamedTuple):
    """Parameters, and the loss and gradient of a minibatch there."""

    w: Tensor
    f: float
    g: Tensor

    @property
    def finite(self) -> bool:
        return math.isfinite(self.f) and bool(self.g.isfinite().all())


def check_arguments(closure: Closure | None, index: int | None, batches: int, needs: str) -> tuple[Closure, int]:
    """What ``step`` was given, or an error that says what it needs."""
    if not callable(closure):
        raise TypeError(f"SFO.step needs {needs}: step(closure, index); got closure {closure!r}")
    if index is None:
        raise TypeError(
            "SFO.step was given no index, and it keeps a model of each minibatch: "
            "i = opt.next_index(); opt.step(closure, i)"
        )
    i = operator.index(index)
    if not 0 <= i < batches:
        raise IndexError(f"the index of a minibatch must be 0 to {batches - 1} with batches={batches}, got {i}")
    return closure, i


def evaluate(flat: FlatParameters, closure: Closure, maximize: bool) -> tuple[Any, Point]:
    """The closure's loss, and loss and gradient at the parameters as they are, with the sign to be minimized."""
    w, g = flat.gather(flat.new()), flat.new()
    with torch.enable_grad():
        loss = closure()
    if loss is None:
        raise TypeError("the closure of SFO.step returned None: it must return the loss")
    if not flat.gather_gradients(flat.views(g)):
        raise RuntimeError("no parameter has a gradient after the closure: it must call backward() on the loss")
    f = float(loss.detach() if isinstance(loss, Tensor) else loss)
    return loss, Point(w, -f, g.neg_()) if maximize else Point(w, f, g)
