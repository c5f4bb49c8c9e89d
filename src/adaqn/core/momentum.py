"""The averaged gradient that goes into the recursion in place of the gradient (the paper's open question)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaqn.core.scaling import runs


class Momentum:
    """m ← βm + (1 − β)g, and m / (1 − βᵗ) in place of g: Adam's first moment, with its bias correction.

    With ``nesterov`` it is the average as the next step will see it, with this gradient in place of the unknown next
    one, as in NAdam: βm / (1 − βᵗ⁺¹) + (1 − β)g / (1 − βᵗ). It lags behind by one step less.

    Only the recursion sees it: H0 and F̃ measure the size of gradients, which averaging would hide. β comes with every
    call, one per parameter, for schedulers change it; t is counted per parameter, and a parameter without a gradient
    does not age, as in torch's Adam.

    >>> momentum, g = Momentum(), torch.tensor([2.0])
    >>> momentum.build(torch.zeros(1), [1])
    >>> round(float(momentum.mix(g, [0], betas=[0.9])), 4)
    2.0
    """

    def __init__(self, *, nesterov: bool = False) -> None:
        self.nesterov = nesterov
        self.vector = torch.empty(0)
        self.sizes: list[int] = []
        self.steps: list[int] = []

    def build(self, vector: Tensor, sizes: Sequence[int]) -> None:
        """Take over a zeroed buffer; ``sizes`` are the lengths of the parameters in it."""
        self.vector, self.sizes = vector, list(sizes)
        self.reset()

    def reset(self) -> None:
        """Forget every gradient seen."""
        self.vector.zero_()
        self.steps = [0] * len(self.sizes)

    def preview(self, g: Tensor, present: Sequence[int], betas: Sequence[float], out: Tensor) -> Tensor:
        """out ← what :meth:`mix` would make of g; nothing changes."""
        out.copy_(g)
        for part, (step, beta) in self._parts(present, betas, older_by=1):
            average = out[part].lerp_(self.vector[part], beta)
            if self.nesterov:
                now, ahead = 1.0 - beta**step, 1.0 - beta ** (step + 1)
                average.mul_(beta / ahead).add_(g[part], alpha=(1.0 - beta) / now)
            else:
                average.mul_(1.0 / (1.0 - beta**step))
        return out

    def mix(self, g: Tensor, present: Sequence[int], betas: Sequence[float]) -> Tensor:
        """g ← the averaged gradient, in place, for the parameters that are present; the others stay as they are."""
        for i in present:
            self.steps[i] += 1
        for part, (step, beta) in self._parts(present, betas):
            average = self.vector[part].lerp_(g[part], 1.0 - beta)
            if self.nesterov:
                now, ahead = 1.0 - beta**step, 1.0 - beta ** (step + 1)
                g[part].mul_((1.0 - beta) / now).add_(average, alpha=beta / ahead)
            else:
                torch.mul(average, 1.0 / (1.0 - beta**step), out=g[part])
        return g

    def _parts(
        self, present: Sequence[int], betas: Sequence[float], older_by: int = 0
    ) -> list[tuple[slice, tuple[int, float]]]:
        """Stretches of the vector with the same (t, β)."""
        kinds: list[tuple[int, float] | None] = [None] * len(self.sizes)
        for i in present:
            kinds[i] = self.steps[i] + older_by, betas[i]
        return runs(self.sizes, kinds)
