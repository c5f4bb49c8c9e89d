"""adaQN as the paper prints it: Algorithms 1 and 2, line by line, in float64 on plain vectors.

Read this file first, with the paper in hand; ``adaqn.optim`` computes the same numbers fast, and
the tests hold the two equal. Speed, checkpoints and models have no place here.

=============  ===================================================================
paper          here
=============  ===================================================================
w, α, H_k      ``w``, ``lr``, :func:`two_loop` applied to the gradient
L, m_L, m_F    ``L``, ``m_L``, ``m_F``
ε, γ           ``eps`` (of H0 and of line 19), ``gamma``
w_s            ``w_sum`` over ``summed`` iterates
w̄_o, w̄_n       ``anchor``, ``candidate``
F̃, S, Y        ``F``, ``S``, ``Y``: lists of vectors, oldest first
f_M            ``monitor``
=============  ===================================================================

D1 to D14, D23, D24 and D33 to D36 are decisions where the paper is silent or its pseudo-code is wrong; they are argued
in ``docs/decisions.md``. D10 concerns RES and SDBFGS, which are not in this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adaqn.core.acceptance import (
    BEST_FADES,
    NONFINITE_PATIENCE,
    SMALLEST_MULTIPLIER,
    PairedTest,
    as_risen,
    faded,
    grouped,
    is_rejected,
    mean_of_groups,
    risen,
)
from adaqn.core.growth import after_accepted, after_rejected
from adaqn.core.looks import is_by_all
from adaqn.core.outcome import Outcome
from adaqn.core.pairs import absolute


@dataclass(frozen=True)
class Iterate:
    """What one pass of the loop left behind; ``outcome`` is set where a cycle ended."""

    w: Tensor
    outcome: Outcome | None
    pairs: int
    step_multiplier: float
    x: Tensor
    """The average of accepted cycles (D33)."""


def two_loop(g: Tensor, S: list[Tensor], Y: list[Tensor], H0: Tensor) -> Tensor:
    """H·g by Algorithm 2, with the diagonal ``H0`` and pairs oldest first."""
    q = g.clone()  # l. 2
    alpha = [torch.zeros(())] * len(S)
    for i in reversed(range(len(S))):  # l. 3
        alpha[i] = (S[i] @ q) / (S[i] @ Y[i])  # l. 4, ρ_i = 1/s·y
        q = q - alpha[i] * Y[i]  # l. 5
    r = H0 * q  # l. 7
    for i in range(len(S)):  # l. 8
        beta = (Y[i] @ r) / (S[i] @ Y[i])  # l. 9
        r = r + S[i] * (alpha[i] - beta)  # l. 10
    return r  # l. 12


def paired_verdict(
    new: Tensor, old: Tensor, best: Tensor, test: PairedTest, first_look: int, *, rotates: bool = False
) -> tuple[bool, bool, Tensor]:
    """(Is the cycle rejected? Because it has climbed? The best losses so far): line 12 from losses of single examples.

    D35: the first few examples may settle it. If they do not, all of them judge, and only then is there a D23. Where
    sets of examples take turns, the best is known by how far the loss has risen since, cycle by cycle.
    """
    n, rise = first_look, risen(best)
    if 0 < 2 * n <= len(new) and test.settles(new[:n], old[:n], n / len(new)):
        further = float(new[:n].mean()) - float(old[:n].mean())
        return False, False, as_risen(max(0.0, rise + further)) if rotates else best
    if test(new, old):
        return True, False, best
    if rotates:
        if test.has_climbed(new, old, grouped(old) - rise):  # D23
            return True, True, as_risen((1.0 - BEST_FADES) * rise)
        return False, False, as_risen(max(0.0, rise + float(new.mean()) - float(old.mean())))
    best = min(best, grouped(old), key=mean_of_groups)
    if test.has_climbed(new, old, best):  # D23
        return True, True, faded(best, old)
    return False, False, min(best, grouped(new), key=mean_of_groups)


def adaqn(
    w0: Tensor,
    gradient: Callable[[Tensor, int], Tensor],
    monitor: Callable[[Tensor], float | Tensor],
    *,
    lr: float | Callable[[int], float] = 1e-2,
    L: int = 5,
    m_L: int = 10,
    m_F: int = 100,
    eps: float = 1e-4,
    gamma: float = 1.01,
    batch_size: int = 1,
    anchor_patience: int | None = 20,
    reject_patience: int | None = 3,
    scale: str = "h0",
    c: float = 0.0,
    growth: float = 1.0,
    paired: PairedTest | None = None,
    first_look: int = 0,
) -> Iterator[Iterate]:
    """Algorithm 1, endlessly: one :class:`Iterate` for every call of ``gradient(w, k)``.

    ``batch_size`` above 1 is the normalisation of the aFIM equation instead of line 18's (D4).
    A ``monitor`` with an ``advance`` method is moved on once per cycle, and then judges both points (D7).
    The relative-improvement test with γ̃ is ``gamma = 1 + γ̃`` (D12). With ``paired`` the monitor returns one loss per
    example, and line 12 is :func:`paired_verdict`.

    Beyond the paper: a step size that is a function of k; ``scale``, in which pairs are of lr·H0 instead of H0, by the
    lr of their cycle (``"stored"``) or of the step (``"current"``, D34); ``m_L = 0``, which keeps none; the growing
    average with its ``c`` (D33); and steps up to ``growth`` times as long while the monitored loss falls (D37).

    >>> minimum = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> run = adaqn(torch.zeros(2), lambda w, k: w - minimum, lambda w: float((w - minimum).norm()), lr=0.5)
    >>> for _, iterate in zip(range(200), run):
    ...     pass
    >>> bool(torch.allclose(iterate.w, minimum, atol=1e-6))
    True
    """
    w = w0.detach().to(torch.float64).clone()
    anchor, started, f_old = w.clone(), False, torch.tensor(math.nan)  # l. 1; D5: w₀ until the first cycle ends
    best = grouped(torch.tensor(math.inf))  # D23
    w_sum, summed, passed = torch.zeros_like(w), 0, 0  # l. 1; D9: iterates in the sum, and gradients of the cycle
    F: list[Tensor] = []  # l. 2
    S: list[Tensor] = []
    Y: list[Tensor] = []
    G = torch.full_like(w, eps)  # Σ g² + ε of H0
    skips = rejections = nonfinite = cycles = 0
    step_multiplier = 1.0
    x, averaged = w.clone(), 0  # D33: the growing average, and the steps in it
    lr_at = lr if callable(lr) else lambda k: lr
    k = 0

    while True:  # l. 4
        alpha = lr_at(k)
        g = gradient(w, k).to(torch.float64)
        k, passed = k + 1, passed + 1
        outcome: Outcome | None = None

        if not (g @ g).isfinite():  # D9: nothing else is touched
            nonfinite += 1
        else:
            nonfinite = 0
            G = G + g**2
            if scale == "current":  # D34: what has no step size does not move
                w = w - step_multiplier * (two_loop(g, S, Y, alpha / G.sqrt()) if alpha > 0.0 else 0.0)
            else:
                w = w - alpha * step_multiplier * two_loop(g, S, Y, 1.0 / G.sqrt())  # l. 5
            F = [*F, g][-m_F:]  # l. 6
            w_sum, summed = w_sum + w, summed + 1  # l. 7

        if passed < L:  # l. 8; D1: the first cycle is as long as any other
            yield Iterate(w.clone(), None, len(S), step_multiplier, x.clone())
            continue
        passed, moved_on = 0, hasattr(monitor, "advance")
        if moved_on:
            monitor.advance()  # type: ignore[attr-defined]

        if nonfinite >= NONFINITE_PATIENCE or (nonfinite and not w.isfinite().all()):
            outcome, nonfinite = Outcome.REJECTED, 0  # D13: no gradient will be finite again
            step_multiplier = after_rejected(step_multiplier)
        elif not summed:  # D9: there is no average
            yield Iterate(w.clone(), None, len(S), step_multiplier, x.clone())
            continue
        else:
            candidate = w_sum / summed  # l. 9; D1: divide by the number summed
            if moved_on:
                f_old = torch.as_tensor(
                    monitor(anchor), dtype=torch.float64
                )  # D7: values are never compared across sets
            is_number = bool((candidate @ candidate).isfinite())  # D13
            f_new = torch.as_tensor(monitor(candidate) if is_number else math.inf, dtype=torch.float64)
            climbed = False
            if not started or not is_number:
                worse = not bool(f_new.isfinite().all())  # D5
                best = best if worse or paired is None else grouped(f_new)
            elif paired is None:
                worse = is_rejected(float(f_new.mean()), float(f_old.mean()), gamma)
            else:
                first = 0 if is_by_all(cycles + 1) else first_look
                turns = hasattr(monitor, "advance")
                worse, climbed, best = paired_verdict(f_new, f_old, best, paired, first, rotates=turns)
            if worse:  # l. 12
                outcome = Outcome.REJECTED
                rejections = rejections + 1 if not S else 0
                step_multiplier = after_rejected(step_multiplier)  # D37
                if climbed or rejections == reject_patience:  # D11; D24: once
                    step_multiplier = max(step_multiplier / 2, SMALLEST_MULTIPLIER)
                rejections = 0 if rejections == reject_patience else rejections
        own, w_sum, summed = summed, torch.zeros_like(w), 0  # l. 10
        cycles += 1

        if outcome is Outcome.REJECTED:
            F, S, Y = [], [], []  # l. 13; D3: G is kept
            w = anchor.clone()  # l. 14; D2: a copy, and the counter goes on
            skips = 0
            yield Iterate(w.clone(), outcome, 0, step_multiplier, x.clone())
            continue  # l. 15

        few = first_look or None
        fell = bool(f_new.reshape(-1)[:few].mean() < f_old.reshape(-1)[:few].mean()) if started else None
        rejections, step_multiplier = 0, after_accepted(step_multiplier, fell, growth)  # D11, D37
        averaged += own
        share = c * own / (averaged + c * own) if started and c else 1.0  # D33: weights count steps
        x = x + share * (candidate - x)
        if not started or m_L == 0:
            outcome, started = (Outcome.KEPT if started else Outcome.STARTED), True
            anchor, f_old = candidate, f_new  # l. 24
        else:
            s = candidate - anchor  # l. 17
            y = torch.stack([gi * (gi @ s) for gi in F]).sum(0) / (len(F) * batch_size)  # l. 18; D4
            y = alpha * y if scale == "stored" else y  # D34
            if absolute(float(s @ s), float(s @ y), float(y @ y), eps):  # l. 19; D14
                outcome, skips = Outcome.STORED, 0
                S, Y = [*S, s][-m_L:], [*Y, y][-m_L:]  # l. 20
                anchor, f_old = candidate, f_new  # l. 21
            else:
                outcome, skips = Outcome.SKIPPED, skips + 1
                if skips == anchor_patience:  # D6
                    skips, anchor, f_old = 0, candidate, f_new
        yield Iterate(w.clone(), outcome, len(S), step_multiplier, x.clone())
