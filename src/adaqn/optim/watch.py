"""The monitored loss at the average of a cycle and at the anchor, the same for all processes (l. 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from adaqn.core.acceptance import mean_loss
from adaqn.core.products import size_of
from adaqn.evaluation.losses import monitored_loss
from adaqn.evaluation.undisturbed import BuffersSeen
from adaqn.optim.events import Notices
from adaqn.optim.judge import Judge, Losses
from adaqn.optim.monitor import RotatingMonitor
from adaqn.optim.state import State
from adaqn.parameters.processes import check_same, reshard
from adaqn.parameters.shards import FlatShards

MonitorFunction = Callable[[], Any]


class Watch:
    """A monitor, and what it said of the anchor; ``judge`` is who asks."""

    def __init__(self, monitor: MonitorFunction | None, judge: Judge, notices: Notices) -> None:
        self.judge, self.notices = judge, notices
        self._buffers_seen: BuffersSeen | None = None
        """Of the monitored model, at the last evaluation."""
        self.use(monitor)

    def use(self, monitor: MonitorFunction | None) -> None:
        """Ask this one from now on; what another said of the anchor does not compare (D7)."""
        if monitor is not None and not callable(monitor):
            raise TypeError(
                f"monitor must be a function without arguments, such as Monitor(model, loss_fn, batch); "
                f"got {type(monitor).__name__}"
            )
        self.monitor = monitor
        self.anchor_losses: Tensor | None = None
        """D8: kept while the monitoring set is fixed."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers_seen": None}  # buffers are known by their identity: those of a copy are new

    def losses(self, state: State, candidate: Tensor) -> Losses:
        """At the candidate and, where there is something to compare, at the anchor."""
        is_number, is_monitored, rotates = self._settle(state, candidate)
        if not is_monitored:
            if self.judge.test is not None:
                self.notices.say(
                    "no monitor was given, so no cycle is rejected by its loss: pass monitor=Monitor(...), "
                    "or reject='none' if that is meant"
                )
            return Losses(is_number)
        if not is_number:
            return Losses(is_number=False)
        new, started = self._losses_at(state, candidate), bool(state.counters.started)
        is_finite = math.isfinite(mean_loss(new))
        if not started and is_finite and not self.judge.judges_first_cycle:
            return Losses(new=new)
        if self.anchor_losses is None:
            self.anchor_losses = self._losses_at(state, state.anchor)
        old = self.anchor_losses
        if math.isfinite(mean_loss(old)):
            return Losses(new=new, old=old)
        if is_finite and not started:
            return Losses(new=new)  # any number is better than none
        where = "the last accepted average" if started else "the weights before the first step"
        message = (
            f"the monitor returned {mean_loss(new)} and, at {where}, {mean_loss(old)}: the monitoring batch or its "
            "loss is at fault, not the steps"
        )
        if not rotates or not started:
            raise ValueError(message)
        self.notices.say(message + "; such a set judges nothing")  # D7
        return Losses(new=new, old=old)

    @contextmanager
    def placed(self, state: State, vector: Tensor) -> Iterator[None]:
        """Other weights within the block, and no whole copies of them that FSDP2 keeps after it."""
        model = getattr(self.monitor, "model", None)
        if isinstance(state.flat, FlatShards) and model is None:
            raise RuntimeError(
                "FSDP2 keeps whole copies of the weights after an evaluation, and to have them dropped the optimizer "
                "must know the model: use adaqn.Monitor, or give your monitor an attribute `model`"
            )
        reshard(model)
        try:
            with state.flat.swapped(vector, backup=state.scratch.weights):
                yield
        finally:
            reshard(model)

    def take_turn_of(self, state: State) -> None:
        """A rotating monitor goes on where the state's was."""
        if isinstance(self.monitor, RotatingMonitor):
            self.monitor.position = state.counters.monitor_position

    def _settle(self, state: State, candidate: Tensor) -> tuple[bool, bool, bool]:
        """(Is the candidate finite? Has any process a monitor? One that rotates?), the same in all of them (D18)."""
        watches = self.monitor is not None and self.judge.test is not None
        rotates = watches and hasattr(self.monitor, "advance")
        error = self._turned(state) if rotates else None
        about = (size_of(candidate, state.flat.reduce), watches, rotates, self._remembers_anchor())
        rows = state.flat.processes.agreed("the monitor", error, *about, *state.flat.fingerprints(candidate))
        sizes, watching, rotating, remembering, *prints = zip(*rows, strict=True)
        is_number = all(map(math.isfinite, sizes))  # D13
        if is_number:
            of_weights, of_gradients = prints[:2], prints[2:]
            check_same(*of_weights)
            check_same(*of_gradients)
            if any(len(set(values)) > 1 for values in of_weights):
                candidate.copy_(state.flat.processes.first(candidate))
                state.adopt_first()
        if any(watching) and not all(watching) and isinstance(state.flat, FlatShards):
            raise RuntimeError(
                f"process {watching.index(0.0)} has no monitor and another has one: an evaluation of sharded "
                "weights is a common work of all processes, so give every process a monitor"
            )
        if not all(remembering):
            self.anchor_losses = None
        return is_number, any(watching), any(rotating)

    def _turned(self, state: State) -> Exception | None:
        """The next set of the monitor, as D7 wants it; the error if there is none, which all processes must know of."""
        monitor: Any = self.monitor
        try:
            monitor.advance()
        except Exception as error:
            return error
        self.anchor_losses = None  # values are never compared across sets
        if isinstance(monitor, RotatingMonitor):
            state.counters.monitor_position = monitor.position
        return None

    def _losses_at(self, state: State, vector: Tensor) -> Tensor:
        monitor = self.monitor  # another process may have one and this one not
        with self.placed(state, vector):
            losses = state.flat.processes.pooled(None if monitor is None else lambda: monitored_loss(monitor))
        self._buffers_seen = BuffersSeen(getattr(monitor, "model", None))
        return -losses if state.method.maximize else losses

    def _remembers_anchor(self) -> bool:
        """Is the loss at the anchor known, and of the model as it is? BatchNorm's statistics change each step (D8)."""
        if self.anchor_losses is None or self._buffers_seen is None:
            return False
        return self._buffers_seen.unchanged(getattr(self.monitor, "model", None))
