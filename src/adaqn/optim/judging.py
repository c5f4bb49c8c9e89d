"""Is a cycle kept? What the monitor says of it, and what repeated rejections do to the step size."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from adaqn.core.acceptance import BEST_FADES, PairedTest, halves_step, mean_and_error, mean_loss
from adaqn.core.products import Reduce, local
from adaqn.evaluation.losses import monitored_loss
from adaqn.evaluation.undisturbed import BuffersSeen
from adaqn.optim.base import HistoryOptimizer
from adaqn.optim.distributed import check_same
from adaqn.optim.memory import Memory
from adaqn.optim.monitor import RotatingMonitor
from adaqn.optim.sharded import FlatShards


class JudgingOptimizer(HistoryOptimizer):
    """A history optimizer that compares the average of a cycle with the anchor."""

    _buffers_seen: BuffersSeen | None = None
    """Of the monitored model, at the last evaluation."""

    def _judge(self, m: Memory, candidate: Tensor) -> tuple[Tensor | None, Tensor | None, bool]:
        """(losses at the candidate, at the anchor, is it rejected?) (l. 12)"""
        is_number, is_monitored, rotates = self._settle(m, candidate)
        if not is_monitored:
            if self.options.acceptance is not None:
                self._say(
                    "no monitor was given, so no cycle is rejected by its loss: pass monitor=Monitor(...), "
                    "or acceptance='none' if that is meant"
                )
            return None, None, not is_number
        if not is_number:
            return None, None, True
        new = self._losses_at(m, candidate)
        is_finite = math.isfinite(mean_loss(new))
        if not m.counters.started and is_finite and not self.options.reject_window:
            return new, None, False  # D15 judges the first cycle too, against the weights before the first step
        old = self._losses_at_anchor(m)
        if math.isfinite(mean_loss(old)):
            return new, old, not is_finite or self._is_rejected(new, old) or self._stops_a_climb(m, new, old)  # D5
        if is_finite and not m.counters.started:
            return new, None, False  # any number is better than none
        where = "the last accepted average" if m.counters.started else "the weights before the first step"
        message = (
            f"the monitor returned {mean_loss(new)} and, at {where}, {mean_loss(old)}: the monitoring batch or its "
            "loss is at fault, not the steps"
        )
        if not rotates or not m.counters.started:
            raise ValueError(message)
        self._say(message + "; such a set judges nothing")  # D7
        return new, old, False

    def _settle(self, m: Memory, candidate: Tensor) -> tuple[bool, bool, bool]:
        """(Is the candidate finite? Has any process a monitor? One that rotates?), the same in all of them (D18)."""
        watches = self._monitor is not None and self.options.acceptance is not None
        rotates = watches and hasattr(self._monitor, "advance")
        error = self._turned(m) if rotates else None
        about = (size_of(candidate, m.flat.reduce), watches, rotates, self._remembers_anchor())
        rows = m.flat.processes.agreed("the monitor", error, *about, *m.flat.fingerprints(candidate))
        sizes, watching, rotating, remembering, *prints = zip(*rows, strict=True)
        is_number = all(map(math.isfinite, sizes))  # D13
        if is_number:
            of_weights, of_gradients = prints[:2], prints[2:]
            check_same(*of_weights)
            check_same(*of_gradients)
            if any(len(set(values)) > 1 for values in of_weights):
                self._adopt_first(m, candidate)
        if any(watching) and not all(watching) and isinstance(m.flat, FlatShards):
            raise RuntimeError(
                f"process {watching.index(0.0)} has no monitor and another has one: an evaluation of sharded "
                "weights is a common work of all processes, so give every process a monitor"
            )
        if not all(remembering):
            self._anchor_losses = None
        return is_number, any(watching), any(rotating)

    def _turned(self, m: Memory) -> Exception | None:
        """The next set of the monitor, as D7 wants it; the error if there is none, which all processes must know of."""
        monitor: Any = self._monitor
        try:
            monitor.advance()
        except Exception as error:
            return error
        self._anchor_losses = None  # values are never compared across sets
        if isinstance(monitor, RotatingMonitor):
            m.counters.monitor_position = monitor.position
        return None

    def _adopt_first(self, m: Memory, candidate: Tensor) -> None:
        """Weights of processes that round differently drift apart, and what H0 knows: the first one's for all."""
        weights = m.flat.gather(m.g) if m.master is None else m.master
        learnt = [buffer for name, buffer in m.buffers.items() if name.startswith(("scaling_", "momentum"))]
        for vector in (candidate, weights, *learnt):
            vector.copy_(m.flat.processes.first(vector))
        m.set_weights(weights)

    def _losses_at(self, m: Memory, vector: Tensor) -> Tensor:
        monitor = self._monitor  # another process may have one and this one not
        with self._evaluating(m, vector):
            losses = m.flat.processes.pooled(None if monitor is None else lambda: monitored_loss(monitor))
        self._buffers_seen = BuffersSeen(getattr(monitor, "model", None))
        return -losses if self.options.maximize else losses

    def _remembers_anchor(self) -> bool:
        """Is the loss at the anchor known, and of the model as it is? BatchNorm's statistics change each step (D8)."""
        if self._anchor_losses is None or self._buffers_seen is None:
            return False
        return self._buffers_seen.unchanged(getattr(self._monitor, "model", None))

    def _losses_at_anchor(self, m: Memory) -> Tensor:
        if self._anchor_losses is None:  # D8: kept while the monitoring set is fixed
            self._anchor_losses = self._losses_at(m, m.anchor)
        return self._anchor_losses

    def _is_rejected(self, new: Tensor, old: Tensor) -> bool:
        test = self.options.acceptance
        assert test is not None
        if isinstance(test, PairedTest) and not test.where_possible and not test.applies(new, old):
            self._say(
                f"acceptance='paired' compares the losses of the same two or more examples at both points, and the "
                f"monitor returned shapes {tuple(new.shape)} and {tuple(old.shape)}: the factor test decides instead. "
                "Give the monitor a loss_fn that returns one loss per example (reduction='none')"
            )
        return bool(test(new, old))

    def _stops_a_climb(self, m: Memory, new: Tensor, old: Tensor) -> bool:
        """D23: cycles that are each worse by no more than noise may together lead far up; smaller steps if they do."""
        test, c = self.options.acceptance, m.counters
        if not isinstance(test, PairedTest):
            return False
        if not c.has_best:
            c.note_best(*mean_and_error(old))
        if not test.has_climbed(new, old, (c.best_loss, c.best_error)):
            return False
        c.best_loss += BEST_FADES * max(0.0, mean_loss(old) - c.best_loss)
        c.halve_steps()
        return True

    def _note_best(self, m: Memory, losses: Tensor | None) -> None:
        if isinstance(self.options.acceptance, PairedTest) and losses is not None:
            m.counters.note_best(*mean_and_error(losses))

    def _count_rejection(self, m: Memory) -> None:
        """D11: H0 alone, rejected again and again, takes too large a step. D15: so does whatever else is rejected."""
        c, now = m.counters, m.counters.cycles + 1
        if self.options.reject_window:
            if halves_step(now, c.rejected_at, self.options.reject_window):
                c.halve_steps()
            c.rejected_at = now
            return
        c.rejections_in_row = c.rejections_in_row + 1 if len(m.pairs) == 0 else 0
        if c.rejections_in_row == self.options.reject_patience:
            c.step_multiplier, c.rejections_in_row = c.step_multiplier / 2.0, 0


def size_of(vector: Tensor, reduce: Reduce = local) -> float:
    """A number that is zero exactly if the vector is, and not finite if its square is not; one read from the device."""
    square = _total(vector.dot(vector), reduce)
    if square != 0.0:
        return square
    largest = torch.linalg.vector_norm(vector, math.inf) if vector.numel() else vector.new_zeros(())
    return _total(largest, reduce)  # the square may have underflowed


def _total(value: Tensor, reduce: Reduce) -> float:
    return float(value) if reduce is local else float(reduce(value.double().reshape(1)))
