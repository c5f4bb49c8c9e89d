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
    does not age, as in torch's Adam. Nor does one whose gradient was not finite: t is counted on the device.

    >>> momentum, g = Momentum(), torch.tensor([2.0])
    >>> momentum.build(torch.zeros(1), [1])
    >>> round(float(momentum.mix(g, [0], betas=[0.9])), 4)
    2.0
    """

    def __init__(self, *, nesterov: bool = False) -> None:
        self.nesterov = nesterov
        self.vector = torch.empty(0)
        self.sizes: list[int] = []

    def build(self, vector: Tensor, sizes: Sequence[int]) -> None:
        """Take over a zeroed buffer; ``sizes`` are the lengths of the parameters in it."""
        self.vector, self.sizes = vector, list(sizes)
        self._t = torch.zeros(len(self.sizes), dtype=torch.float64, device=vector.device)
        self.reset()

    def reset(self) -> None:
        """Forget every gradient seen."""
        self.vector.zero_()
        self._t.zero_()
        self._histories = [0] * len(self.sizes)

    @property
    def steps(self) -> list[int]:
        """t of each parameter; read from the device."""
        return [int(t) for t in self._t.tolist()]

    @steps.setter
    def steps(self, steps: Sequence[int]) -> None:
        self._t.copy_(torch.tensor(steps, dtype=torch.float64))
        self._histories = list(steps)

    def preview(self, g: Tensor, present: Sequence[int], betas: Sequence[float], out: Tensor) -> Tensor:
        """out ← what :meth:`mix` would make of a finite g; nothing changes."""
        out.copy_(g)
        for part, (_, first, beta) in self._parts(present, betas):
            of_g, of_average = self._factors(self._t[first] + 1.0, beta)
            average = out[part].lerp_(self.vector[part], beta)
            average.mul_(of_average)
            if of_g is not None:
                average.addcmul_(g[part], of_g)
        return out

    def mix(self, g: Tensor, present: Sequence[int], betas: Sequence[float], ok: Tensor | None = None) -> Tensor:
        """g ← the averaged gradient, in place, for the parameters that are present; the others stay as they are.

        Where ``ok`` is 0 the gradient was not finite, and is zero here: g stays zero, and nothing changes.
        """
        ok = torch.ones((), dtype=g.dtype, device=g.device) if ok is None else ok
        self._age(present, ok)
        for part, (_, first, beta) in self._parts(present, betas):
            of_g, of_average = self._factors(self._t[first].clamp(min=1.0), beta)
            average = self.vector[part].lerp_(g[part], ok * (1.0 - beta))
            of_average = of_average * ok
            if of_g is None:
                torch.mul(average, of_average, out=g[part])
            else:
                g[part].mul_(of_g).addcmul_(average, of_average)
        return g

    def _factors(self, t: Tensor, beta: float) -> tuple[Tensor | None, Tensor]:
        """Of g, where it counts by itself (``nesterov``), and of the average: their bias corrections, on the device."""
        power = torch.pow(beta, t)
        if not self.nesterov:
            return None, 1.0 / (1.0 - power)
        return (1.0 - beta) / (1.0 - power), beta / (1.0 - beta * power)

    def _age(self, present: Sequence[int], ok: Tensor) -> None:
        if len(present) == len(self.sizes):
            self._t += ok
            return
        self._histories = split_histories(self._histories, present)
        here = torch.zeros_like(self._t)
        here[list(present)] = 1.0
        self._t.addcmul_(here, ok)

    def _parts(self, present: Sequence[int], betas: Sequence[float]) -> list[tuple[slice, tuple[int, int, float]]]:
        """Stretches of the vector with the same t and β: (their history, the first of that history, β)."""
        first: dict[int, int] = {}
        kinds: list[tuple[int, int, float] | None] = [None] * len(self.sizes)
        for i in present:
            history = self._histories[i]
            kinds[i] = history, first.setdefault(history, i), betas[i]
        return runs(self.sizes, kinds)


def split_histories(histories: Sequence[int], present: Sequence[int]) -> list[int]:
    """One number for all that were present at the same steps, and so are of one age, which only the device knows.

    How often they were present is not enough: a gradient that was not finite counts for none of those present.

    >>> split_histories([0, 0, 0, 7], present=[1, 2])
    [0, 1, 1, 2]
    """
    here, numbers = set(present), dict[tuple[int, bool], int]()
    return [numbers.setdefault((history, i in here), len(numbers)) for i, history in enumerate(histories)]
