"""Which minibatch SFO evaluates next, when it takes in another one, and when a step was a bad one."""

from __future__ import annotations

import torch
from torch import Tensor

from adaqn.baselines.sfo_model import SumModel
from adaqn.baselines.sfo_state import SFOState

NEW_LOSS_DEVIATIONS = 3.0
"""A first loss of a minibatch that lies this many deviations above the others' is suspicious."""


def next_index(m: SFOState, order: str) -> int:
    """The minibatch to evaluate next: see ``SFO.next_index``."""
    barred = m.is_barred()
    outside = ~m.active & ~barred
    candidates = next((c for c in (m.active & ~barred, outside) if c.any()), m.active)
    for few in (m.model.evaluations == 1, m.model.evaluations == 0):
        if (few & candidates).any():
            return int((few & candidates).nonzero()[0])
    if order == "cyclic":
        return next_in_turn(candidates, m.numbers.last_index)
    index, distance = farthest(m.model, m.x, candidates, by_own_hessian=m.numbers.steps % 2 == 1)
    if distance < 1e-12 and outside.any():  # all have been evaluated right here
        return int(outside.nonzero()[0])
    return index


def farthest(model: SumModel, x: Tensor, candidates: Tensor, by_own_hessian: bool) -> tuple[int, float]:
    """argmax (x − x_i)ᵀ Q (x − x_i) among the candidates, and that distance; Q is H_i or Σ H."""
    offsets = x - model.positions
    if by_own_hessian:
        products = model.products(offsets)
    else:
        products = offsets @ model.total_hessian(len(x))
    distances = torch.where(candidates, (offsets * products).sum(1), -torch.inf)
    index = int(distances.argmax())
    return index, float(distances[index])


def next_in_turn(candidates: Tensor, last: int) -> int:
    """The candidate after ``last``, in a circle.

    >>> next_in_turn(torch.tensor([True, False, True]), 2)
    0
    """
    indices = candidates.nonzero()[:, 0]
    later = indices[indices > last]
    return int(later[0] if len(later) else indices[0])


def gradient_is_noise(gradients: Tensor, factor: Tensor, ratio: float) -> bool:
    """Is the standard error of the mean gradient as large as the mean, in the norm of H⁻¹?

        Σ (g_i − ḡ)ᵀ H⁻¹ (g_i − ḡ) / (A (A − 1))  ≥  ratio · ḡᵀ H⁻¹ ḡ

    Args:
        gradients: (A, K), the last gradient of each minibatch that takes part.
        factor: the Cholesky factor L of H = L Lᵀ.
        ratio: 1 in the paper.
    """
    count = len(gradients)
    if count < 2:
        return True
    mean = gradients.mean(0, keepdim=True)
    signal = _inverse_norm(mean, factor)
    noise = _inverse_norm(gradients - mean, factor) / (count * (count - 1))
    return noise >= ratio * signal


def _inverse_norm(rows: Tensor, factor: Tensor) -> float:
    return float(torch.linalg.solve_triangular(factor, rows.t(), upper=False).square().sum())


def is_bad_update(model: SumModel, i: int, x: Tensor, f: float, gain: float, eps: float) -> bool:
    """Has the last step made minibatch i worse by more than the others are expected to have won?

    Seen before: bad if f > f_i and f − g_i(x) > gain − (f_i − g_i(x)), where ``gain`` is what the whole model
    expected of the step. Seen for the first time: bad if f is far above the losses of the others.
    ``eps`` is the rounding unit of f: differences of that size are none.
    """
    rounding = 8.0 * eps * abs(f)
    if int(model.evaluations[i]) == 0:
        others = model.losses[model.evaluations >= 2]
        if len(others) < 2:
            return False
        deviation = float(others.std(correction=0))
        return f > float(others.mean()) + NEW_LOSS_DEVIATIONS * deviation + rounding
    last, predicted = float(model.losses[i]), model.predicted(i, x)
    if f <= last + rounding:
        return False
    return f - predicted > gain - (last - predicted) + rounding
