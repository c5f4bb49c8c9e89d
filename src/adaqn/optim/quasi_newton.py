"""The loop that all quasi-Newton methods here share; a method is a choice of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would load the compiler on import

from adaqn.core.acceptance import NONFINITE_PATIENCE, STEP_RECOVERY
from adaqn.core.cycle import cosine_of_newest, next_cycle_length, signal_share
from adaqn.core.outcome import Outcome
from adaqn.core.pairs import is_usable
from adaqn.core.pairs import products as products_of
from adaqn.core.products import round_to
from adaqn.optim.base import NO_PAIR, Products
from adaqn.optim.descending import DescendingOptimizer
from adaqn.optim.gradient_difference import GradientDifference
from adaqn.optim.judging import size_of
from adaqn.optim.memory import Memory
from adaqn.optim.model_curvature import BatchCurvature


class QuasiNewton(DescendingOptimizer):
    """Gradient in, step out; at the end of a cycle an average to judge and a pair to store.

    Line numbers are those of the paper's Algorithm 1, D-numbers those of ``docs/decisions.md``.
    """

    @_disable_dynamo  # inside of something compiled it runs as it is: cycles end by numbers, not by shapes
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step from the gradients in ``.grad``; a closure, if given, is run first."""
        if self._averaging:
            raise RuntimeError("step() was called inside averaged(): leave the block first")
        loss = self._first_evaluation(closure)
        if all(p.grad is None for group in self.param_groups for p in group["params"]):
            self._note_no_gradient()
            return loss
        self._idle_steps = 0
        self._check_step_sizes()
        m = self._current_memory()
        if m.counters.steps == 0 and m.counters.cycles == 0:
            m.restart()  # the weights may have changed since the memory was made
        present = m.flat.gather_gradients(m.g_parts)
        if self.options.maximize:
            m.g.neg_()
        size, s_dot_g = self._look(m, present)
        if not self._may_step(m, size):
            return loss
        m.update_scaling(present, maximize=self.options.maximize)
        if self.options.pairs_from_start:
            torch._foreach_copy_(m.flat.views(m.anchor), m.weights())  # s is this step, whatever moved the weights
        m.curvature.observe(m.g)  # l. 6
        m.average_gradient(present)  # H0 and F̃ have seen the raw one
        self._descend(m, present, s_dot_g)  # l. 5
        m.add_to_window()  # l. 7
        m.counters.steps += 1
        if m.average.count >= self._cycle_length(m.counters):  # l. 8; D1
            self.finish_cycle(m)
        return loss

    def finish_cycle(self, m: Memory) -> None:
        """Judge the average of the cycle, and learn a curvature pair from it (l. 9 to 24)."""
        candidate = m.average.mean(out=m.d)  # l. 9
        new, old, rejected = self._judge(m, candidate)  # the user's code: nothing has changed before it
        products = NO_PAIR
        if rejected:
            outcome = Outcome.REJECTED
            self._count_rejection(m)
            self._return_to_anchor(m)
        elif not (m.counters.started or self.options.pairs_from_start):
            outcome = Outcome.STARTED
        else:
            s = torch.sub(candidate, m.anchor, out=m.g)  # l. 17
            outcome, products = self._offer(m, s, self._curvature_along(m, s, candidate))  # l. 18 to 20
            if self.options.pairs_from_start and not math.isfinite(products[2] or 0.0):
                outcome = Outcome.REJECTED  # the step led to where there is no gradient
                self._count_rejection(m)
                self._return_to_anchor(m)
        if outcome is not Outcome.REJECTED:
            self._on_accepted(m, candidate, outcome, new)
        m.average.clear()  # l. 10
        self._adapt_cycle(m, outcome)
        self._count(m, outcome)
        self._tell(m, outcome, new, old, products)

    def _may_step(self, m: Memory, size: float) -> bool:
        """Is the gradient finite, and is there one at all?"""
        c = m.counters
        if math.isfinite(size):
            c.nonfinite_in_row = 0
            # torch.distributed.checkpoint makes state by a call without gradient and lr; it must leave no trace.
            return size > 0.0 or self._moves()
        if self.options.on_nonfinite == "raise":
            raise FloatingPointError("the gradient holds inf or nan; nothing was changed (on_nonfinite='raise')")
        c.nonfinite += 1  # D9
        c.nonfinite_in_row += 1
        if not self._weights_are_finite(m) or c.nonfinite_in_row >= NONFINITE_PATIENCE:  # D13
            if not math.isfinite(size_of(m.anchor, m.flat.reduce)):
                raise FloatingPointError(
                    "neither the weights nor the point to return to are finite: load good weights, then call "
                    "opt.reset_history()"
                )
            if self.options.reject_window:
                self._count_rejection(m)
            self._return_to_anchor(m)
            self._count(m, Outcome.REJECTED)
            self._tell(m, Outcome.REJECTED)
        return False

    def _moves(self) -> bool:
        """Has any group a step size? That call of torch.distributed.checkpoint has none, and no closure either."""
        return any(_is_nonzero(group["lr"]) for group in self.param_groups)

    def _weights_are_finite(self, m: Memory) -> bool:
        lost = sum(not w.isfinite().all() for w in m.weights())
        return float(m.flat.reduce(torch.tensor([lost], dtype=torch.float64, device=m.g.device))) == 0.0

    def _check_step_sizes(self) -> None:
        for group in self.param_groups:  # a tensor's value would have to be read from the device
            if not isinstance(group["lr"], Tensor) and not group["lr"] >= 0.0:
                raise ValueError(f"lr must be at least 0, got {group['lr']}: was it set by a scheduler?")

    def _first_evaluation(self, closure: Callable[[], Any] | None) -> Any:
        """Run the closure, if there is one, and let a curvature that compares gradients know it."""
        curvature = self.options.curvature
        if isinstance(curvature, GradientDifference) and (closure is not None or self._moves()):
            device = self._trainable()[0].device
            curvature.bind(closure, type(self).__name__, device, maximize=self.options.maximize)
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def _curvature_along(self, m: Memory, s: Tensor, candidate: Tensor) -> Tensor:
        """y, in the memory of the window's sum, which is spent; put back if the user's model raises."""
        try:
            y = self._product(m, s, candidate)
        except BaseException:
            if self.options.pairs_from_start:
                m.average.clear()  # the next step has an anchor of its own
            else:
                torch.mul(candidate, m.average.count, out=m.average.total)
            raise
        return y.neg_() if self.options.maximize and m.curvature.signed else y

    def _product(self, m: Memory, s: Tensor, candidate: Tensor) -> Tensor:
        if not isinstance(m.curvature, BatchCurvature):
            return m.curvature.product(s, candidate, out=m.average.total)
        with m.flat.processes.together("the curvature"):
            y = m.curvature.product(s, candidate, out=m.average.total)
        return m.flat.processes.average_(y)  # each process has batches of its own

    def _offer(self, m: Memory, s: Tensor, y: Tensor) -> tuple[Outcome, Products]:
        """Store the pair if its curvature is good enough (l. 19)."""
        if self.options.repair is not None:
            self.options.repair(s, y, m.h0, m.flat.settle)
        for vector, rows in ((s, m.pairs.S), (y, m.pairs.Y)):
            round_to(rows.dtype, vector)  # what is stored is what must pass the test
        ss, sy, yy = products_of(s, y, m.flat.settle)
        if not (is_usable(sy, yy) and self.options.curvature_test(ss, sy, yy, self.options.curvature_eps)):  # D14
            return Outcome.SKIPPED, (ss, sy, yy)
        m.pairs.push(s, y)  # l. 20
        m.scaling.on_stored(sy, yy)
        return Outcome.STORED, (ss, sy, yy)

    def _on_accepted(self, m: Memory, candidate: Tensor, outcome: Outcome, losses: Tensor | None) -> None:
        c = m.counters
        c.started = 1
        c.rejections_in_row = 0
        c.step_multiplier = min(1.0, c.step_multiplier * STEP_RECOVERY)  # D11
        self._note_best(m, losses)
        c.skips_in_row = c.skips_in_row + 1 if outcome is Outcome.SKIPPED else 0
        if m.accepted is not None:
            m.accepted.copy_(candidate)
        if c.skips_in_row in (0, self.options.anchor_patience):  # l. 21, 24; D6
            m.anchor.copy_(candidate)
            c.skips_in_row = 0
            self._anchor_losses = losses

    def _adapt_cycle(self, m: Memory, outcome: Outcome) -> None:
        """Where L adapts, the length of the next cycle."""
        if self.options.cycle_bounds is None:
            return
        length, beta = self._cycle_length(m.counters), m.momentum.beta if m.momentum is not None else 0.0
        cosine = cosine_of_newest(m.pairs, m.flat.settle) if outcome is Outcome.STORED else None
        share = signal_share(cosine, length, beta) if cosine is not None else None
        m.counters.cycle_length = next_cycle_length(length, outcome, share, *self.options.cycle_bounds)

    def _return_to_anchor(self, m: Memory) -> None:
        """L. 13 and 14; D2: the anchor is copied, and the step counter goes on."""
        m.clear_history()
        if self.options.reset_scaling:  # D3
            m.scaling.reset()
        if self.options.reset_momentum and m.momentum is not None:
            m.momentum.reset()  # it points to where it went wrong
        m.set_weights(m.anchor)
        if m.accepted is not None:
            m.accepted.copy_(m.anchor)
        m.counters.skips_in_row = m.counters.nonfinite_in_row = 0


def _is_nonzero(lr: float | Tensor) -> bool:
    return bool(lr != 0)
