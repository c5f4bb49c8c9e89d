"""What surrounds the algorithm for those who use it: the monitor, totals, averages, explanations, warnings, events."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaqn.core.acceptance import mean_loss
from adaqn.core.outcome import Outcome
from adaqn.optim.counters import Counters
from adaqn.optim.distributed import reshard
from adaqn.optim.events import CycleEvent, Stats
from adaqn.optim.explain import Explanation, explain
from adaqn.optim.memory import Memory
from adaqn.optim.monitor import RotatingMonitor
from adaqn.optim.record import record_of
from adaqn.optim.sharded import FlatShards
from adaqn.optim.size import size_of_state
from adaqn.optim.stored import StoredOptimizer, frames_to_caller
from adaqn.optim.warm_start import check_source, fill_scaling, source_states

IDLE_WARNING = 10
"""Steps in a row in which no parameter had a gradient, after which a warning says so."""
UNSTORED_WARNING = 50
"""Cycles in a row without a stored pair after which a warning says that only H0 is at work."""

MonitorFunction = Callable[[], Any]
Products = tuple[float | None, float | None, float | None]
"""s·s, s·y and y·y."""
NO_PAIR: Products = (None, None, None)


class HistoryOptimizer(StoredOptimizer):
    """A stored optimizer that can be asked, evaluated at its average, and says what it does."""

    @property
    def monitor(self) -> MonitorFunction | None:
        """The monitored loss, a function without arguments; assigning one forgets the loss at the anchor (D7).

        A :class:`adaqn.RotatingMonitor` that has not moved yet takes up where the one before it was: frameworks load
        the state first and build the monitor afterwards.
        """
        return self._monitor

    @monitor.setter
    def monitor(self, monitor: MonitorFunction | None) -> None:
        if isinstance(monitor, RotatingMonitor) and monitor.position == 0 and self._memory is not None:
            monitor.position = self._memory.counters.monitor_position
        self._monitor = monitor
        self._anchor_losses = None
        if self._memory is not None:
            self._memory.counters.forget_best()

    @property
    def stats(self) -> Stats:
        """Totals so far."""
        c = self._memory.counters if self._memory else Counters()
        pairs = len(self._memory.pairs) if self._memory else 0
        return Stats(
            c.steps, c.cycles, c.stored, c.skipped, c.rejected, c.nonfinite, pairs, c.step_multiplier,
            self._cycle_length(c),
        )  # fmt: skip

    def state_size(self) -> int:
        """Bytes of history and work space of this process, known before the first step."""
        flat = self._memory.flat if self._memory else self._flat(self._trainable())
        accepted = self._memory is not None and self._memory.accepted is not None
        return size_of_state(flat, self.options, accepted=accepted).total

    def explain(self) -> Explanation:
        """What happened in the last cycles, in plain words, and what to change: ``print(opt.explain())``.

        It knows the last 40 cycles, and the totals. Of the cycles before a state was loaded the totals alone are known.
        """
        return explain(record_of(self))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The last accepted average in place of the weights, for evaluation.

        Takes one vector of memory from its first use on. Until a cycle has been accepted, and at
        the first use right after a skipped pair, these are the weights as they are.
        """
        if self._averaging:
            raise RuntimeError("averaged() was entered twice: leave the first block before the second")
        if self._memory is None or not self._memory.counters.started:
            yield
            return
        self._averaging = True
        try:
            average = self._memory.keep_accepted()
            self._show_state()
            with self._evaluating(self._memory, average):
                yield
        finally:
            self._averaging = False

    @contextmanager
    def _evaluating(self, m: Memory, vector: Tensor) -> Iterator[None]:
        """Other weights within the block, and no whole copies of them that FSDP2 keeps after it."""
        model = getattr(self._monitor, "model", None)
        if isinstance(m.flat, FlatShards) and model is None:
            raise RuntimeError(
                "FSDP2 keeps whole copies of the weights after an evaluation, and to have them dropped the optimizer "
                "must know the model: use adaqn.Monitor, or give your monitor an attribute `model`"
            )
        reshard(model)
        try:
            with m.flat.swapped(vector, backup=m.g):
                yield
        finally:
            reshard(model)

    @torch.no_grad()
    def reset_history(self) -> None:
        """Start a new history after the weights were changed from outside; H0 and the totals stay."""
        if self._averaging:
            raise RuntimeError("reset_history() was called inside averaged(): leave the block first")
        if self._memory is not None:
            self._memory.restart()
            self._anchor_losses = None

    @torch.no_grad()
    def warm_start(self, source: Optimizer | dict[str, Any]) -> None:
        """Begin with the second moments of torch's Adagrad, RMSprop or Adam (an optimizer or its state_dict).

        An optimizer's parameters are found by identity, those of a state_dict by their order.
        """
        check_source(source, self.options.scaling)
        everything = self._parameters()
        states = dict(zip(map(id, everything), source_states(source, everything), strict=True))
        m = self._current_memory()
        name = next(iter(m.scaling.vector_names), None)
        views = m.flat.views(m.scaling.vectors[name]) if name else []
        fill_scaling(m.scaling, views, [states[id(p)] for p in m.flat.params], m.flat)

    # ------------------------------------------------------------------ telling

    def _say(self, message: str) -> None:
        """A warning, once per optimizer."""
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, stacklevel=frames_to_caller())

    def _note_no_gradient(self) -> None:
        self._idle_steps += 1
        if self._idle_steps == IDLE_WARNING:
            self._say(
                f"no parameter had a gradient in {IDLE_WARNING} steps in a row, so nothing is trained: are these the "
                "parameters of the model that is? fully_shard and load_state_dict(assign=True) put others in their "
                "place; make the optimizer afterwards"
            )

    def _count(self, m: Memory, outcome: Outcome) -> None:
        c = m.counters
        c.cycles += 1
        if outcome is not Outcome.STARTED:
            setattr(c, outcome.value, getattr(c, outcome.value) + 1)
        c.unstored_in_row = 0 if outcome is Outcome.STORED else c.unstored_in_row + 1
        if c.unstored_in_row >= UNSTORED_WARNING:
            self._say(
                f"{UNSTORED_WARNING} cycles in a row stored no curvature pair, so only H0 is at work. If "
                "opt.stats shows skipped pairs, use curvature_test='scale_free' (the absolute test depends on the "
                "scale of the loss); if it shows rejections, lower lr or enlarge the monitoring set. "
                "opt.explain() says which"
            )

    def _tell(
        self,
        m: Memory,
        outcome: Outcome,
        new: Tensor | None = None,
        old: Tensor | None = None,
        products: Products = NO_PAIR,
    ) -> None:
        sign = -1.0 if self.options.maximize else 1.0
        f_new, f_old = (None if losses is None else sign * mean_loss(losses) for losses in (new, old))
        c, (ss, sy, yy) = m.counters, products
        examples = None if new is None else new.numel() if new.dim() else 0
        event = CycleEvent(
            c.steps, c.cycles, outcome, f_new, f_old, ss, sy, yy, len(m.pairs), c.step_multiplier, examples,
            self._cycle_length(c), c.stored, c.skipped, c.rejected, c.nonfinite,
        )  # fmt: skip
        self.recent.append(event)
        for callback in self.options.on_cycle:  # the user's code: the cycle is complete before it
            callback(event)
