"""SFO, the sum-of-functions optimizer: one quadratic model per minibatch, all in one small subspace."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from adaqn.baselines import sfo_choice as choice
from adaqn.baselines.sfo_base import SFOOptions, SumOptimizer
from adaqn.baselines.sfo_evaluation import Closure, Point, checked, evaluate
from adaqn.baselines.sfo_memory import Memory
from adaqn.baselines.sfo_model import cholesky_factor
from adaqn.baselines.sfo_subspace import norm

SMALLEST_STEP_SCALE = 1e-5
BACK_OFFS, BACK_OFF = 10, 0.01
"""After an exploded step: how many times at most it is shortened, and by which factor."""
NONFINITE_PATIENCE = 3
"""Evaluations in a row that are not finite until the position, not the minibatch, takes the blame."""


class SFO(SumOptimizer):
    """The sum-of-functions optimizer of Sohl-Dickstein, Poole and Ganguli (ICML 2014, arXiv:1311.2115).

    The objective is F(w) = Σ f_i(w) over N fixed minibatches. Each has a quadratic model g_i: its last loss and
    gradient, and a Hessian H_i by BFGS from the differences of its own gradients. One evaluation renews one
    model, and the step goes to the minimum of their sum,

        w ← w − η (Σ H_i)⁻¹ Σ ∇g_i(w),

    within a subspace spanned by the last positions and gradients of all minibatches: between K_min = 2N + 2 and
    K_max = 3N + 3 directions. η is 1, half as large after each bad update, and grows back.

    A minibatch must be the same function each time: no fresh dropout masks or augmentation. The authors advise
    25 minibatches or more, about √(examples)/10 of them for large data. Memory is 3N + 4 vectors as long as the
    parameters, and about 135 N² numbers (see :meth:`state_size`). Weights may be changed from outside between steps.

    Args:
        params: parameters, or groups of them; float32, float64 or complex.
        batches: N, the number of minibatches.
        lr: multiplies every step; the method needs no other than 1. The same for all groups.
        history_size: pairs of differences kept per minibatch.
        initial_curvature: the Hessian of the very first step. Large is safe: a step too short to change a
            gradient measurably is followed by one ten times as long.
        initial_active: minibatches that take part at first; more join as the mean gradient drowns in noise.
        max_condition: the largest condition number of an H_i.
        max_gradient_noise: standard error over length of the mean gradient above which another minibatch joins.
        max_step_ratio: the longest step over the mean of those before, after the first N evaluations.
        min_step: steps are no shorter, so that gradients change measurably; 0 turns it off.
        min_kept: a pair whose step keeps less of its length than this share when the subspace collapses is forgotten.
        order: what :meth:`next_index` follows, ``"distance"`` or ``"cyclic"``.
        maximize: go up instead.

    The constants are those of the authors' program; the paper's own text was not at hand to check them. Where this
    leaves the program: (1) Nothing is random: minibatches join in their order, the two measures of distance alternate
    instead of being drawn, and a collapsed subspace is not filled up with random directions. (2) Positions are kept
    relative to the current one, not to zero. (3) ``min_kept=0`` is the program, which keeps every pair; 0.7 was
    faster on the small problems tried. (4) The expected gain of a step is the model's, −∇G·d − ½ dᵀHd, also where
    the step was shortened; there the program takes ½ dᵀHd. (5) Differences of losses within rounding are no bad
    update, the first loss of a minibatch is compared with two others at least, and pairs are judged against the
    rounding of gradients instead of 1e-12. (6) A non-finite evaluation is skipped; only three in a row are a bad
    update. (7) The subspace collapses when fewer than three directions are free, not one.

    >>> _ = torch.manual_seed(0)
    >>> data, w = torch.randn(10, 8, 3), torch.nn.Parameter(torch.zeros(3))
    >>> opt = SFO([w], batches=10)
    >>> for _ in range(60):
    ...     i = opt.next_index()
    ...     def closure():
    ...         opt.zero_grad()
    ...         loss = (data[i] @ w - 1.0).square().mean()
    ...         loss.backward()
    ...         return loss
    ...     _ = opt.step(closure, i)
    >>> best = torch.linalg.lstsq(data.reshape(-1, 3), torch.ones(80, 1)).solution[:, 0]
    >>> bool((w - best).norm() < 1e-3)
    True
    """

    needs: ClassVar[str] = "a closure that gives loss and gradients of one fixed minibatch, and that minibatch's index"

    def __init__(
        self,
        params: Any,
        *,
        batches: int,
        lr: float | Tensor = 1.0,
        history_size: int = 10,
        initial_curvature: float = 1e5,
        initial_active: int = 2,
        max_condition: float = 1e8,
        max_gradient_noise: float = 1.0,
        max_step_ratio: float = 10.0,
        min_step: float = 1e-8,
        min_kept: float = 0.7,
        order: str = "distance",
        maximize: bool = False,
    ) -> None:
        options = SFOOptions(
            batches, history_size, initial_curvature, initial_active, max_condition, max_gradient_noise,
            max_step_ratio, min_step, min_kept, order, maximize,
        )  # fmt: skip
        super().__init__(params, options, lr=lr)

    def next_index(self) -> int:
        """The minibatch to evaluate next; asking changes nothing.

        First those that take part and have fewer than two evaluations, so that each soon has a Hessian;
        then the one whose last evaluation lies farthest away. Minibatches whose last evaluation was not
        finite wait for N steps.
        """
        m = self._memory
        if m is None:
            return 0
        barred = m.is_barred()
        outside = ~m.active & ~barred
        candidates = next((c for c in (m.active & ~barred, outside) if c.any()), m.active)
        for few in (m.model.evaluations == 1, m.model.evaluations == 0):
            if (few & candidates).any():
                return int((few & candidates).nonzero()[0])
        if self.options.order == "cyclic":
            return choice.next_in_turn(candidates, m.numbers.last_index)
        index, distance = choice.farthest(m.model, m.x, candidates, by_own_hessian=m.numbers.steps % 2 == 1)
        if distance < 1e-12 and outside.any():  # all have been evaluated right here
            return int(outside.nonzero()[0])
        return index

    @torch.no_grad()
    def step(self, closure: Closure | None = None, index: int | None = None) -> Any:
        """Evaluate one minibatch, renew its model, and go to the minimum of the sum of models.

        Args:
            closure: calls ``zero_grad()``, computes the loss of minibatch ``index`` at the parameters as they
                are, calls ``backward()`` and returns the loss. After a bad update it is called again.
            index: of the minibatch, 0 to N − 1; :meth:`next_index` suggests one.

        Returns:
            the loss of the first call.
        """
        closure, i = checked(closure, index, self.options.batches, self.needs)
        lr = self._lr()
        if not lr >= 0.0:
            raise ValueError(f"lr must be at least 0, got {float(lr)}: was it set by a scheduler?")
        m = self._current_memory()
        loss, point = self._evaluate(m, closure)
        if lr == 0.0:
            return loss  # models of a point that is not left would only crowd the subspace
        if not point.finite:
            self._skip(m, i, lr)
            return loss
        if m.numbers.steps == 0:
            m.prior.copy_(point.w)
        m.make_room(self.options.min_kept)
        x = m.locate(point.w)
        eps = torch.finfo(m.flat.dtype).eps
        bad = choice.is_bad_update(m.model, i, x, point.f, m.numbers.gain, eps) and norm(point.w - m.prior) > 0.0
        points = self._retreat(m, closure, i, point, x) if bad else [point]
        if not points:
            self._skip(m, i, lr)
            return loss
        self._rescale(m, bad)
        self._learn(m, i, points)
        factor = self._move(m, points[-1].w, m.model.positions[i].clone(), lr)
        self._grow(m, factor, bad)
        return loss

    # ------------------------------------------------------------------ evaluation

    def _evaluate(self, m: Memory, closure: Closure) -> tuple[Any, Point]:
        return evaluate(m.flat, closure, self.options.maximize)

    def _skip(self, m: Memory, i: int, lr: float) -> None:
        """Not finite: a bad minibatch, until several in a row say that the last step led nowhere."""
        c = m.numbers
        c.nonfinite += 1
        c.nonfinite_in_row += 1
        m.barred_since[i] = c.steps
        if c.nonfinite_in_row >= NONFINITE_PATIENCE and c.steps > 0:
            c.nonfinite_in_row = 0
            self._rescale(m, bad=True)
            self._move(m, m.prior.clone(), m.x_prior, lr)

    def _retreat(self, m: Memory, closure: Closure, i: int, point: Point, x: Tensor) -> list[Point]:
        """After a bad update: points for the history, the last of which is where to go on. None if not finite."""
        with m.flat.swapped(m.prior, backup=m.flat.new()):
            before = self._evaluate(m, closure)[1]
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
                point = self._evaluate(m, closure)[1]
                m.numbers.calls += 1
        if not point.finite:
            return [before]
        return [before, point] if point.f < before.f else [point, before]

    # ------------------------------------------------------------------ the model

    def _rescale(self, m: Memory, bad: bool) -> None:
        """η: halved after a bad update, otherwise back towards 1 with the time constant of one pass."""
        c, share = m.numbers, 1.0 / self.options.batches
        c.step_scale = max(c.step_scale / 2.0, SMALLEST_STEP_SCALE) if bad else share + (1.0 - share) * c.step_scale
        c.rejected += bad

    def _learn(self, m: Memory, i: int, points: list[Point]) -> None:
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

    def _move(self, m: Memory, w: Tensor, x: Tensor, lr: float) -> Tensor:
        """w ← w + d, to the minimum of the model from x; returns the Cholesky factor of Σ H."""
        size, c = m.subspace.size, m.numbers
        H, gradient = m.model.total_hessian(size), m.model.total_gradient(x)[:size]
        factor = cholesky_factor(H, self.options.max_condition)
        d = -c.step_scale * torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        d = lr * self._limited(m, d)
        moved = w + m.subspace.lift(d)
        if not bool(moved.isfinite().all()):
            c.nonfinite += 1
            moved, d = w, torch.zeros_like(d)
        m.prior.copy_(w)
        m.x_prior, m.x = x, x + m.padded(d)
        m.flat.scatter(moved)
        c.gain = max(0.0, -float(gradient @ d) - 0.5 * float(d @ (H @ d)))
        return factor

    def _limited(self, m: Memory, d: Tensor) -> Tensor:
        """No shorter than ``min_step``, and after the first pass not much longer than the steps so far."""
        length, c, o = float(d.norm()), m.numbers, self.options
        if length == 0.0 or not math.isfinite(length):
            return d
        target = max(length, o.min_step)
        if c.calls > o.batches and c.distance > 0.0:
            target = min(target, o.max_step_ratio * c.distance / c.calls)
        return d * (target / length)

    def _grow(self, m: Memory, factor: Tensor, bad: bool) -> None:
        """Take in the next minibatch if the gradient is noise, the step was bad, or a pass went by without one."""
        c, model = m.numbers, m.model
        settled = bool((model.evaluations[m.active & ~m.is_barred()] >= 2).all())
        gradients = model.gradients[m.active & (model.evaluations > 0)][:, : len(factor)]
        noisy = choice.gradient_is_noise(gradients, factor, self.options.max_gradient_noise)
        wanted = noisy or bad or c.since_growth > int(m.active.sum())
        c.since_growth += 1
        if settled and wanted and not m.active.all():
            m.active[int((~m.active).nonzero()[0])] = True
            c.since_growth = 0
