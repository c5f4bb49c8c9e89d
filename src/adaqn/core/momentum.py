"""The averaged gradient that goes into the recursion in place of the gradient (the paper's open question)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaqn.core.scaling import parts_of, runs


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
        self._betas = tuple[float, ...](), self._t
        """The last ones that were not the same for all, and where they lie on the device."""
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
        parts, of = self._parts(present, betas)
        beta = self._beta(betas, of)
        of_g, of_average = self._factors(self._ages(of) + 1.0, beta)
        averages, towards = parts_of(out, parts), parts_of(self.vector, parts)
        if isinstance(beta, Tensor):
            torch._foreach_lerp_(averages, towards, _each(beta.to(out.dtype), of))
        else:
            torch._foreach_lerp_(averages, towards, beta)
        torch._foreach_mul_(averages, _each(of_average, of))
        if of_g is not None:
            torch._foreach_addcmul_(averages, parts_of(g, parts), _each(of_g, of))
        return out

    def mix(self, g: Tensor, present: Sequence[int], betas: Sequence[float], ok: Tensor | None = None) -> Tensor:
        """g ← the averaged gradient, in place, for the parameters that are present; the others stay as they are.

        Where ``ok`` is 0 the gradient was not finite, and is zero here: g stays zero, and nothing changes.
        """
        ok = torch.ones((), dtype=g.dtype, device=g.device) if ok is None else ok
        self._age(present, ok)
        parts, of = self._parts(present, betas)
        beta = self._beta(betas, of)
        of_g, of_average = self._factors(self._ages(of).clamp(min=1.0), beta)
        new = 1.0 - beta
        averages, found = parts_of(self.vector, parts), parts_of(g, parts)
        torch._foreach_lerp_(averages, found, _each(ok * (new.to(g.dtype) if isinstance(new, Tensor) else new), of))
        if of_g is None:
            torch._foreach_copy_(found, averages)
            torch._foreach_mul_(found, _each(of_average * ok, of))
        else:
            torch._foreach_mul_(found, _each(of_g, of))
            torch._foreach_addcmul_(found, averages, _each(of_average * ok, of))
        return g

    def _factors(self, t: Tensor, beta: float | Tensor) -> tuple[Tensor | None, Tensor]:
        """Of g, where it counts by itself (``nesterov``), and of the average: their bias corrections, on the device."""
        power = torch.pow(beta, t)
        if not self.nesterov:
            return None, 1.0 / (1.0 - power)
        return (1.0 - beta) / (1.0 - power), beta / (1.0 - beta * power)

    def _ages(self, of: Sequence[int]) -> Tensor:
        """t of these parameters: one number where it is the same one's, and otherwise that of every parameter."""
        return self._t[of[0]] if len(set(of)) == 1 else self._t

    def _beta(self, betas: Sequence[float], of: Sequence[int]) -> float | Tensor:
        """The same of β, on the device only where these parameters have several."""
        if len({betas[i] for i in of}) == 1:
            return betas[of[0]]
        if self._betas[0] != tuple(betas):
            self._betas = tuple(betas), torch.tensor(betas, dtype=torch.float64).to(self._t.device)
        return self._betas[1]

    def _age(self, present: Sequence[int], ok: Tensor) -> None:
        if len(present) == len(self.sizes):
            self._t += ok
            return
        self._histories = split_histories(self._histories, present)
        here = torch.zeros_like(self._t)
        here[list(present)] = 1.0
        self._t.addcmul_(here, ok)

    def _parts(self, present: Sequence[int], betas: Sequence[float]) -> tuple[list[slice], list[int]]:
        """Stretches of the vector with the same t and β, and a parameter that has those, for each."""
        first: dict[tuple[int, float], int] = {}
        kinds: list[int | None] = [None] * len(self.sizes)
        for i in present:
            kinds[i] = first.setdefault((self._histories[i], betas[i]), i)
        found = runs(self.sizes, kinds)
        return [part for part, _ in found], [kind for _, kind in found]


def _each(values: Tensor, of: Sequence[int]) -> list[Tensor]:
    """The value of each of these parameters, from those of all, or one for all."""
    if values.dim() == 0:
        return [values] * len(of)
    each = values.unbind()
    return [each[i] for i in of]


def split_histories(histories: Sequence[int], present: Sequence[int]) -> list[int]:
    """One number for all that were present at the same steps, and so are of one age, which only the device knows.

    How often they were present is not enough: a gradient that was not finite counts for none of those present.

    >>> split_histories([0, 0, 0, 7], present=[1, 2])
    [0, 1, 1, 2]
    """
    here, numbers = set(present), dict[tuple[int, bool], int]()
    return [numbers.setdefault((history, i in here), len(numbers)) for i, history in enumerate(histories)]
