"""The monitored loss at the average of a cycle and at the anchor, the same for all processes (l. 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from adaqn.core.acceptance import PairedTest, mean_loss
from adaqn.core.products import on_host
from adaqn.evaluation.losses import monitored_loss
from adaqn.evaluation.undisturbed import BuffersSeen
from adaqn.optim.events import Notices
from adaqn.optim.judge import Judge, Losses
from adaqn.optim.monitor import Monitor, RotatingMonitor
from adaqn.optim.monitored import MonitoredGradient, MonitoredPass
from adaqn.optim.state import State
from adaqn.parameters.processes import check_same, reshard
from adaqn.parameters.shards import FlatShards

MonitorFunction = Callable[[], Any]
SCALAR = (
    "the monitor returns one number for its batch instead of one loss per example, so its noise is not known: a fixed "
    "factor rejects cycles (reject='factor') in place of the paired test. Give Monitor a loss_fn that returns one loss "
    "per example (docs/frameworks.md#the-monitor-of-your-model), or say reject='factor' if that is meant"
)


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
        self.is_checked = False
        self.anchor_losses: Tensor | None = None
        """D8: kept while the monitoring set is fixed."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers_seen": None}  # buffers are known by their identity: those of a copy are new

    def check(self, state: State) -> None:
        """Before the first step: evaluate a monitor that could not be when it was made, and say what it lacks.

        Where processes work together they meet once, before anything has changed, and an error in one is one in all
        (D18). A monitor that is assigned later shows its mistakes at the end of a cycle there.
        """
        self.is_checked = True
        monitor = self.monitor if isinstance(self.monitor, Monitor) else None
        untried = monitor is not None and not monitor.is_tried
        if self.judge.test is None:
            return
        try:
            if state.flat.processes.count == 1 and not isinstance(state.flat, FlatShards):
                if untried and monitor is not None:
                    monitor()
            elif state.is_new and any(row[0] for row in state.flat.processes.agreed("the monitor", None, untried)):
                self._losses_at(state, state.anchor)
        except Exception:
            self.is_checked = False
            raise
        if monitor is not None and monitor.is_scalar and isinstance(self.judge.test, PairedTest):
            self.notices.say(SCALAR)

    def losses(self, state: State, candidate: Tensor) -> Losses:
        """At the candidate and, where there is something to compare, at the anchor.

        With them, in one read, the host learns whether the candidate is a number, and which steps of the cycle had a
        finite gradient. A candidate that is none is not evaluated: the anchor is in its place, and judges nothing.
        """
        summary = state.summary(candidate)
        is_monitored, rotates, is_number = self._settle(state, candidate, summary)
        if not is_monitored and self.judge.test is not None:
            self.notices.say(
                "no monitor was given, so no cycle is rejected by its loss: pass monitor=Monitor(...), "
                "or reject='none' if that is meant"
            )
        if not is_monitored and state.curvature.needs_monitor:
            self.notices.say(
                "no monitor was given, and pairs are made of its gradients: there are none, and H0 works alone; "
                "pass monitor=Monitor(...)"
            )
        if not is_monitored and is_number is None:
            is_number = state.learn(*on_host(summary))
        if not is_monitored or not (is_number is None or (is_number and state.tally.finite)):
            return Losses(bool(is_number))
        if is_number is None:
            usable = summary[0].isfinite() & (state.tally.count > 0.0)
            torch.where(usable, candidate, state.anchor, out=candidate)
        started = bool(state.counters.started)
        found = [self._losses_at(state, candidate)]
        if self.anchor_losses is None and (started or self.judge.judges_first_cycle or state.curvature.needs_monitor):
            found.append(self._losses_at(state, state.anchor))
        if is_number is None:
            told, *found = on_host(summary, *found)
            is_number = state.learn(told)
        else:
            found = on_host(*found)
        if len(found) > 1:
            self.anchor_losses = found[1]
        if not is_number or not state.tally.finite:
            return Losses(is_number)
        return self._compared(state, found[0], started=started, rotates=rotates)

    def _compared(self, state: State, new: Tensor, *, started: bool, rotates: bool) -> Losses:
        """With those of the anchor, and one error where these are no numbers."""
        is_finite = math.isfinite(mean_loss(new))
        if not started and is_finite and not self.judge.judges_first_cycle:
            return Losses(new=new)
        if self.anchor_losses is None:
            (self.anchor_losses,) = on_host(self._losses_at(state, state.anchor))
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
        model = self._model(state)
        reshard(model)
        try:
            with state.flat.swapped(vector, backup=state.scratch.weights):
                yield
        finally:
            reshard(model)

    def place(self, state: State, vector: Tensor) -> None:
        """Other weights, to stay."""
        model = self._model(state)
        state.flat.scatter(vector)
        reshard(model)

    def _model(self, state: State) -> Any:
        """Of which FSDP2 may keep whole copies."""
        model = getattr(self.monitor, "model", None)
        if isinstance(state.flat, FlatShards) and model is None:
            raise RuntimeError(
                "FSDP2 keeps whole copies of the weights after an evaluation, and to have them dropped the optimizer "
                "must know the model: use adaqn.Monitor, or give your monitor an attribute `model`"
            )
        return model

    def take_turn_of(self, state: State) -> None:
        """A rotating monitor goes on where the state's was."""
        if isinstance(self.monitor, RotatingMonitor):
            self.monitor.position = state.counters.monitor_position

    def _settle(self, state: State, candidate: Tensor, summary: Tensor) -> tuple[bool, bool, bool | None]:
        """(Has any process a monitor? One that rotates? Is the candidate a number?), the same in all of them (D18).

        One process by itself does not know the last yet: it is read with the losses.
        """
        asked = self.judge.test is not None or state.curvature.needs_monitor
        watches = self.monitor is not None and asked
        rotates = watches and hasattr(self.monitor, "advance")
        error = self._turned(state) if rotates else None
        several = state.flat.processes.count > 1
        told = on_host(summary)[0].tolist() if several else [0.0] * len(summary)
        about = (*told, watches, rotates, self._remembers_anchor())
        rows = state.flat.processes.agreed("the monitor", error, *about, *state.flat.fingerprints(candidate))
        squares, _, _, watching, rotating, remembering, w, w_norm, g, g_norm = zip(*rows, strict=True)
        is_number = all(map(math.isfinite, squares)) if several else None  # D13
        if several:
            state.learn(torch.tensor(told))  # its own: another process may have been asked before
        if is_number:
            check_same(w, w_norm)
            check_same(g, g_norm)
            if any(len(set(values)) > 1 for values in (w, w_norm)):
                candidate.copy_(state.flat.processes.first(candidate))
                state.adopt_first()
        if any(watching) and not all(watching) and isinstance(state.flat, FlatShards):
            raise RuntimeError(
                f"process {watching.index(0.0)} has no monitor and another has one: an evaluation of sharded "
                "weights is a common work of all processes, so give every process a monitor"
            )
        if not all(remembering):
            self.anchor_losses = None
        return any(watching), any(rotating), is_number

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
        monitor, curvature = self.monitor, state.curvature  # another process may have a monitor and this one not
        pooled = state.flat.processes.pooled
        with self.placed(state, vector):
            if isinstance(curvature, MonitoredGradient):
                evaluate = MonitoredPass(monitor, state.flat, curvature.examples)
                losses = pooled(None if monitor is None else evaluate)
                curvature.keep(evaluate, state.flat, at_anchor=vector is state.anchor)
            else:
                losses = pooled(None if monitor is None else lambda: monitored_loss(monitor))
        self._buffers_seen = BuffersSeen(getattr(monitor, "model", None))
        return -losses if state.method.maximize else losses

    def _remembers_anchor(self) -> bool:
        """Is the loss at the anchor known, and of the model as it is? BatchNorm's statistics change each step (D8)."""
        if self.anchor_losses is None or self._buffers_seen is None:
            return False
        return self._buffers_seen.unchanged(getattr(self.monitor, "model", None))
