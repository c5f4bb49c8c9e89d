"""The parts of one step of SFO: back off, rescale, learn, move, take in another minibatch; functions of its state."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaqn.baselines.sfo_choice import gradient_is_noise
from adaqn.baselines.sfo_evaluation import Closure, Point, evaluate
from adaqn.baselines.sfo_model import cholesky_factor
from adaqn.baselines.sfo_options import SFOOptions
from adaqn.baselines.sfo_state import SFOState
from adaqn.baselines.sfo_subspace import norm

SMALLEST_STEP_SCALE = 1e-5
BACK_OFFS, BACK_OFF = 10, 0.01
"""After an exploded step: how many times at most it is shortened, and by which factor."""
NONFINITE_PATIENCE = 3
"""Evaluations in a row that are not finite until the position, not the minibatch, takes the blame."""


def skip(m: SFOState, o: SFOOptions, i: int, lr: float) -> None:
    """Not finite: a bad minibatch, until several in a row say that the last step led nowhere.

    If half that step leads nowhere either, a gradient in the model is wrong: all begins anew where the step began.
    """
    c = m.numbers
    c.nonfinite += 1
    c.nonfinite_in_row += 1
    m.barred_since[i] = c.steps
    if c.nonfinite_in_row % NONFINITE_PATIENCE or c.steps == 0:
        return
    rescale(m, o, bad=True)
    if c.nonfinite_in_row == NONFINITE_PATIENCE:
        move(m, o, m.prior.clone(), m.x_prior, lr)
    else:
        m.restart()


def wrong_gradient(m: SFOState, i: int, x: Tensor, point: Point) -> bool:
    """Is this gradient beyond the numbers, or far larger than the last one and belied by the losses?"""
    g = m.padded(m.subspace.project(point.g))
    if not bool(g.isfinite().all()):
        return True
    larger = int(m.model.evaluations[i]) > 0 and norm(point.g) > float(m.model.gradients[i].norm())
    return larger and m.model.contradicted(i, x - m.model.positions[i], point.f, g)


def retreat(m: SFOState, o: SFOOptions, closure: Closure, i: int, point: Point, x: Tensor) -> list[Point]:
    """After a bad update: points for the history, the last of which is where to go on. None if not finite."""
    with m.flat.swapped(m.prior, backup=m.flat.new()):
        before = evaluate(m.flat, closure, o.maximize)[1]
        if not before.finite:
            return []
        m.numbers.calls += 1
        seen = int(m.model.evaluations[i]) > 0
        expected = abs(m.model.predicted(i, x) - float(m.model.losses[i])) if seen else abs(point.f - before.f)
        expected = max(expected, torch.finfo(m.flat.dtype).eps * abs(before.f))
        for _ in range(BACK_OFFS):  # an exploded value would spoil the history for long
            if point.f - before.f < 10.0 * expected:
                break
            m.flat.scatter(m.prior + BACK_OFF * (point.w - m.prior))
            point = evaluate(m.flat, closure, o.maximize)[1]
            m.numbers.calls += 1
    if not point.finite:
        return [before]
    return [before, point] if point.f < before.f else [point, before]


def rescale(m: SFOState, o: SFOOptions, bad: bool) -> None:
    """η: halved after a bad update, otherwise back towards 1 with the time constant of one pass."""
    c, share = m.numbers, 1.0 / o.batches
    c.step_scale = max(c.step_scale / 2.0, SMALLEST_STEP_SCALE) if bad else share + (1.0 - share) * c.step_scale
    c.rejected += bad


def learn(m: SFOState, i: int, points: list[Point]) -> None:
    """The model of minibatch i from what was evaluated; the last point is where the parameters are now."""
    for point in points:
        x = m.locate(point.w)
        m.subspace.include(point.g)
        m.model.record(i, x, point.f, m.padded(m.subspace.project(point.g)))
    m.model.refit(i, m.subspace.size)
    m.active[i] = True
    c = m.numbers
    c.steps, c.calls, c.last_index, c.nonfinite_in_row = c.steps + 1, c.calls + 1, i, 0
    c.distance += norm(points[-1].w - m.prior)


def move(m: SFOState, o: SFOOptions, w: Tensor, x: Tensor, lr: float) -> Tensor:
    """w ← w + d, to the minimum of the model from x; returns the Cholesky factor of Σ H."""
    size, c = m.subspace.size, m.numbers
    H, gradient = m.model.total_hessian(size), m.model.total_gradient(x)[:size]
    factor = cholesky_factor(H, o.max_condition)
    d = -c.step_scale * torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    d = lr * limited(m, o, d)
    moved = w + m.subspace.lift(d)
    if not bool(moved.isfinite().all()):
        c.nonfinite += 1
        moved, d = w, torch.zeros_like(d)
    m.prior.copy_(w)
    m.x_prior, m.x = x, x + m.padded(d)
    m.flat.scatter(moved)
    c.gain = max(0.0, -float(gradient @ d) - 0.5 * float(d @ (H @ d)))
    return factor


def limited(m: SFOState, o: SFOOptions, d: Tensor) -> Tensor:
    """No shorter than ``min_step``, and after the first pass not much longer than the steps so far."""
    length, c = float(d.norm()), m.numbers
    if length == 0.0 or not math.isfinite(length):
        return d
    target = max(length, o.min_step)
    if c.calls > o.batches and c.distance > 0.0:
        target = min(target, o.max_step_ratio * c.distance / c.calls)
    return d * (target / length)


def grow(m: SFOState, o: SFOOptions, factor: Tensor, bad: bool) -> None:
    """Take in the next minibatch if the gradient is noise, the step was bad, or a pass went by without one."""
    c, model = m.numbers, m.model
    settled = bool((model.evaluations[m.active & ~m.is_barred()] >= 2).all())
    gradients = model.gradients[m.active & (model.evaluations > 0)][:, : len(factor)]
    noisy = gradient_is_noise(gradients, factor, o.max_gradient_noise)
    wanted = noisy or bad or c.since_growth > int(m.active.sum())
    c.since_growth += 1
    if settled and wanted and not m.active.all():
        m.active[int((~m.active).nonzero()[0])] = True
        c.since_growth = 0
