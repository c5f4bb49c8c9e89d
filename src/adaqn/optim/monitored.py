"""Where y comes from the monitored batch: the change of its gradient between two points, on the same examples."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaqn.core.checks import at_least_one, positive_number
from adaqn.core.curvature import Curvature
from adaqn.core.products import Reduce, local
from adaqn.evaluation.losses import monitored_loss
from adaqn.optim.monitor import Monitor
from adaqn.parameters.flat import FlatParameters, as_real
from adaqn.parameters.shards import FlatShards

NO_GRADIENT = (
    "the monitored loss has no gradient, and curvature='monitored' compares two of them: it may switch gradients off "
    "(torch.no_grad, .item(), .detach(), argmax), or not depend on the parameters"
)
HALF_SCALE = 2.0**12
"""By which a loss in float16 is multiplied before its backward pass: small gradients would become zero."""


class MonitoredGradient(Curvature):
    r"""y = κ·(∇f_M(w̄) − ∇f_M(anchor)): the monitored batch at both ends of s, so that its noise cancels.

    One backward pass per cycle, behind the forward pass that gives the losses for the verdict; the gradient at the
    anchor is kept. Needs a monitor whose loss can be differentiated: :class:`adaqn.Monitor`, or a function that does
    not switch gradients off. Without one there are no pairs.

    Args:
        kappa: κ. Above 1 it shortens steps along s, as noise in the gradients of the batches asks for.
        examples: take the gradient of the first so many monitored examples alone, and of the others only losses.
            Needs an :class:`adaqn.Monitor`.
    """

    rows = 2
    signed = True
    needs_monitor = True

    def __init__(self, kappa: float = 1.0, *, examples: int | None = None) -> None:
        self.kappa = positive_number("kappa", kappa)
        self.examples = None if examples is None else at_least_one("examples", examples)
        self.knows_anchor = self.knows_candidate = False

    def build(self, data: Tensor, reduce: Reduce = local) -> None:
        self.at_anchor, self.at_candidate = data
        self.knows_anchor = self.knows_candidate = False

    @property
    def is_ready(self) -> bool:
        return self.knows_anchor and self.knows_candidate

    def anchor_moved(self) -> None:
        if self.knows_candidate:
            self.at_anchor.copy_(self.at_candidate)
        self.knows_anchor, self.knows_candidate = self.knows_candidate, False

    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        return torch.sub(self.at_candidate, self.at_anchor, out=out).mul_(self.kappa)

    def keep(self, found: MonitoredPass, flat: FlatParameters, *, at_anchor: bool) -> None:
        """The gradient of a pass that is over, averaged over the processes."""
        found.read_into(flat, self.at_anchor if at_anchor else self.at_candidate)
        if at_anchor:
            self.knows_anchor = True
        else:
            self.knows_candidate = True


class MonitoredPass:
    """One evaluation of the monitored losses with their gradient; ``.grad`` of the parameters stays as it was.

    FSDP2 brings gradients to their shards, averaged, in a backward pass into ``.grad``, as it does in training. All
    others are whole here, of this process's examples.
    """

    def __init__(self, monitor: Any, flat: FlatParameters, examples: int | None, within: slice | None = None) -> None:
        self.monitor, self.params, self.examples, self.within = monitor, flat.params, examples, within
        self.in_shards = isinstance(flat, FlatShards)
        self.gradients: list[Tensor | None] = [None] * len(self.params)
        self.count = 0
        """Losses that the gradient is the mean of."""
        self.scale = HALF_SCALE if getattr(monitor, "autocast", None) is torch.float16 else 1.0

    def __call__(self) -> Tensor:
        losses = self._in_shards() if self.in_shards else self._evaluated(self._add)
        self.count = losses.numel()
        if not self.in_shards and all(g is None for g in self.gradients):  # another process may have these shards
            raise ValueError(f"{NO_GRADIENT} that are trained: is it of another model?")
        if self.scale != 1.0:
            torch._foreach_div_([g for g in self.gradients if g is not None], self.scale)
        return losses

    def _evaluated(self, backward: Callable[[Tensor], None]) -> Tensor:
        return _evaluated(self.monitor, backward, self.examples, self.within)

    def _add(self, part: Tensor) -> None:
        found = torch.autograd.grad(_differentiable(part) * self.scale, self.params, allow_unused=True)
        for i, gradient in enumerate(found):
            before = self.gradients[i]
            if gradient is not None:  # a part of the batch need not use every parameter
                self.gradients[i] = gradient if before is None else before.add_(gradient)

    def _backward(self, part: Tensor) -> None:
        torch.autograd.backward(_differentiable(part) * self.scale)

    def _in_shards(self) -> Tensor:
        kept = [p.grad for p in self.params]
        for p in self.params:
            p.grad = None
        try:
            losses = self._evaluated(self._backward)
            self.gradients = [p.grad for p in self.params]
        finally:
            for p, gradient in zip(self.params, kept, strict=True):
                p.grad = gradient
        return losses

    def read_into(self, flat: FlatParameters, out: Tensor) -> None:
        """out ← the gradient, of the mean over all processes' examples."""
        gradients = self.gradients
        if flat.processes.count > 1 and not self.in_shards:
            gradients = self._averaged(flat)
        present = [(i, g) for i, g in enumerate(gradients) if g is not None]
        views = flat.views(out.zero_())
        flat.read([views[i] for i, _ in present], [g for _, g in present], [i for i, _ in present])

    def _averaged(self, flat: FlatParameters) -> list[Tensor | None]:
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(self.params, self.gradients, strict=True)]
        counts = [row[0] for row in flat.processes.table(float(self.count))]
        share = self.count * len(counts) / max(sum(counts), 1.0)
        vector = flat.processes.average_(torch.cat([as_real(g).reshape(-1).to(flat.dtype) for g in whole]) * share)
        pieces = torch.split(vector, [as_real(g).numel() for g in whole])
        found = [piece.view(as_real(g).shape) for piece, g in zip(pieces, whole, strict=True)]
        return [torch.view_as_complex(f) if g.is_complex() else f for f, g in zip(found, whole, strict=True)]


def _evaluated(monitor: Any, backward: Callable[[Tensor], None], examples: int | None, within: slice | None) -> Tensor:
    if isinstance(monitor, Monitor):
        return monitored_loss(lambda: monitor.differentiate(backward, examples, within))
    if examples is not None:
        raise ValueError(f"examples={examples} of a monitored batch: only an adaqn.Monitor can be cut, got {monitor!r}")

    def whole() -> Any:
        with torch.enable_grad():
            loss = monitor()
            if isinstance(loss, numbers.Real):
                raise ValueError(NO_GRADIENT)
            if isinstance(loss, Tensor):
                backward(loss.mean())
        return loss

    return monitored_loss(whole)


def _differentiable(loss: Tensor) -> Tensor:
    if not loss.requires_grad:
        raise ValueError(NO_GRADIENT)
    return loss
