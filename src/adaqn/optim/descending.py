"""From the gradient to the step: w ← w − Λ^½ H Λ^½ g, also where each process has a part of every vector."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from adaqn.core.direction import gram
from adaqn.core.products import dots
from adaqn.optim.judging import JudgingOptimizer, size_of
from adaqn.optim.memory import Memory


class DescendingOptimizer(JudgingOptimizer):
    """A judging optimizer that moves its weights along H·g."""

    def _look(self, m: Memory, present: list[int]) -> tuple[float, Tensor | None]:
        """(The size of the gradient, the one read per step from the device; and S·g where it came with it).

        With a vector in parts both are sums over the processes, and travel together (D19). The gradient that
        the recursion will see is made beforehand for that, in the memory of the direction; nothing else changes.
        """
        if m.flat.is_whole or self.options.direction is not gram or len(m.pairs) == 0:
            return size_of(m.g, m.flat.reduce), None
        ahead = m.d.copy_(m.g) if m.momentum is None else m.momentum.preview(m.g, present, out=m.d)
        roots = self._roots(self._groups(), self._step_multiplier(m))
        if roots is not None:
            _scale_parts(m.d_parts, roots)
        square = m.g.dot(m.g).double().reshape(1)
        total = m.flat.reduce(torch.cat([square, dots(m.pairs.S, ahead)]))
        size = float(total[0])
        return size if size != 0.0 else size_of(m.g, m.flat.reduce), total[1:]

    def _descend(self, m: Memory, present: list[int], s_dot_g: Tensor | None) -> None:
        """w ← w − Λ^½ H Λ^½ g with Λ the step sizes of the groups; only where there are gradients."""
        groups, multiplier = self._groups(), self._step_multiplier(m)
        roots = self._roots(groups, multiplier)
        if roots is None:
            d, scale = self._direction(m, s_dot_g), groups[0]["lr"] * multiplier
            if isinstance(scale, Tensor):
                d, scale = d.mul_(scale), 1.0
        else:
            _scale_parts(m.g_parts, roots)
            d, scale = self._direction(m, s_dot_g), 1.0
            _scale_parts(m.d_parts, roots)
        if self.options.guarded and not math.isfinite(size_of(d, m.flat.reduce)):
            m.clear_history()
            d.zero_()
        weights, steps = m.weights(), m.d_parts
        for i in present:
            if groups[i]["weight_decay"] != 0.0:
                weights[i].mul_(1.0 - groups[i]["lr"] * multiplier * groups[i]["weight_decay"])
        torch._foreach_add_([weights[i] for i in present], [steps[i] for i in present], alpha=-scale)
        if m.master is not None:
            m.flat.scatter(m.master)
        else:
            m.flat.publish()

    def _direction(self, m: Memory, s_dot_g: Tensor | None) -> Tensor:
        if s_dot_g is not None:
            return gram(m.g, m.pairs, m.h0, out=m.d, reduce=m.flat.reduce, s_dot_g=s_dot_g)
        if m.flat.is_whole:
            return self.options.direction(m.g, m.pairs, m.h0, out=m.d)
        return self.options.direction(m.g, m.pairs, m.h0, out=m.d, reduce=m.flat.reduce)

    def _groups(self) -> list[dict[str, Any]]:
        """The group of each trainable parameter."""
        return [group for group in self.param_groups for p in group["params"] if p.requires_grad]

    def _roots(self, groups: list[dict[str, Any]], multiplier: float) -> list[float | Tensor] | None:
        """Λ^½ by parameter; ``None`` where all step sizes are the same."""
        if all(_same_lr(group["lr"], groups[0]["lr"]) for group in self.param_groups):
            return None
        return [(group["lr"] * multiplier) ** 0.5 for group in groups]

    def _step_multiplier(self, m: Memory) -> float:
        decay = self.options.decay_steps
        return m.counters.step_multiplier * (1.0 if decay is None else decay / (decay + m.counters.steps))


def _same_lr(a: float | Tensor, b: float | Tensor) -> bool:
    # Tensors are compared by identity: their values would have to be read from the device.
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def _scale_parts(parts: list[Tensor], factors: list[float | Tensor]) -> None:
    for part, factor in zip(parts, factors, strict=True):
        part.mul_(factor)
