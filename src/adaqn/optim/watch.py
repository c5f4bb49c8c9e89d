"""The monitored loss at the average of a cycle and at the anchor, the same for all processes (l. 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adaqn.core.acceptance import PairedTest, is_another_function, mean_loss
from adaqn.core.looks import is_by_all
from adaqn.core.products import on_host
from adaqn.evaluation.losses import monitored_loss
from adaqn.evaluation.trial import MISTAKES, said
from adaqn.evaluation.undisturbed import BuffersSeen
from adaqn.optim.events import Notices
from adaqn.optim.judge import Judge, Losses
from adaqn.optim.looks import ONE, Cutter
from adaqn.optim.monitor import Monitor, RotatingMonitor
from adaqn.optim.monitored import MonitoredGradient, MonitoredPass
from adaqn.optim.state import State
from adaqn.parameters.processes import check_same, reshard
from adaqn.parameters.shards import FlatShards

MonitorFunction = Callable[[], Any]
SCALAR = (
    "the monitor returns one number for its batch instead of one loss per example, so its noise is unknown: a fixed "
    "factor (reject='factor') replaces the paired test. Give Monitor a loss_fn that returns one loss per example "
    "(docs/frameworks.md#the-monitor-of-your-model), or pass reject='factor' if that is intended"
)


FOREIGN = (
    "the monitored model has none of the parameters that are trained, so its loss says nothing about the steps: give "
    "Monitor the model whose parameters the optimizer has"
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
        self.looks = ONE
        """At the batch of this cycle, the same in all processes."""
        self._cutter = Cutter(monitor, self.judge)
        self._at_candidate: list[Tensor] = []
        """The losses there, look by look."""
        self._batch = getattr(monitor, "batch", None)
        """What the losses are of, where that is known."""
        self.forget_anchor()

    def forget_anchor(self) -> None:
        """Its losses are of other weights, or of another batch."""
        self._at_anchor: list[Tensor] = []
        """Look by look, as far as they are known; kept while the monitoring set is fixed (D8)."""
        self._anchor_is_of_before = False
        """Are some of them of an earlier cycle?"""

    def anchor_moved(self) -> None:
        """The candidate has become the anchor."""
        self._at_anchor = self._at_candidate

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
        curvature, alone = state.curvature, state.flat.processes.count == 1 and not isinstance(state.flat, FlatShards)
        if self.judge.test is None and not (alone and curvature.needs_monitor):
            return
        try:
            if alone:
                if monitor is not None and (untried or monitor.was_nan):
                    check_first_loss(mean_loss(monitor()), monitor, state)
                if monitor is not None and isinstance(curvature, MonitoredGradient) and state.is_new:
                    MonitoredPass(monitor, state.flat, curvature.examples)()  # an error now rather than in mid-run
            elif state.is_new and any(row[0] for row in state.flat.processes.agreed("the monitor", None, untried)):
                self._losses_at(state, state.anchor)
        except Exception:
            self.is_checked = False
            raise
        if monitor is not None and monitor.is_scalar and isinstance(self.judge.test, PairedTest):
            self.notices.say(SCALAR)
        if monitor is not None and not {id(p) for p in monitor.model.parameters()} & {id(p) for p in state.flat.params}:
            self.notices.say(FOREIGN)

    def losses(self, state: State, candidate: Tensor) -> Losses:
        """At the candidate and, where there is something to compare, at the anchor.

        With them, in one read, the host learns whether the candidate is a number, and which steps of the cycle had a
        finite gradient. A candidate that is none is not evaluated: the anchor is in its place, and judges nothing.
        """
        self._at_candidate = []
        summary = state.summary(candidate)
        is_monitored, rotates, is_number = self._settle(state, candidate, summary)
        self._anchor_is_of_before = bool(self._at_anchor)
        if not is_monitored and self.judge.test is not None:
            self.notices.say(
                "no monitor was given, so no cycle is rejected by its loss: pass monitor=Monitor(...), "
                "or reject='none' if that is intended"
            )
        if not is_monitored and state.curvature.needs_monitor:
            self.notices.say(
                "no monitor was given, and pairs are made of its gradients: no pairs are formed, and only H0 is used; "
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
        by_all = not started or is_by_all(state.counters.cycles + 1)
        parts = self.looks.parts if by_all else self.looks.parts[:1]
        found = self._losses_at(state, candidate, parts)
        if started or self.judge.judges_first_cycle or state.curvature.needs_monitor:
            found += self._losses_at(state, state.anchor, parts[len(self._at_anchor) :])
        if is_number is None:
            told, *found = on_host(summary, *found)
            is_number = state.learn(told)
        else:
            found = on_host(*found)
        self._at_candidate = found[: len(parts)]
        self._at_anchor = [*self._at_anchor, *found[len(parts) :]]
        if not is_number or not state.tally.finite:
            return Losses(is_number)
        losses = replace(self._compared(state, parts, started=started, rotates=rotates), rotating=rotates)
        return losses if len(parts) == len(self.looks.parts) else self._unless_settled(state, candidate, losses)

    def _compared(self, state: State, parts: Sequence[slice | None], *, started: bool, rotates: bool) -> Losses:
        """With those of the anchor, and one error where these are no numbers."""
        new = together(self._at_candidate)
        first = self._at_candidate[0].numel() if len(self.looks.parts) > 1 else None
        is_finite = math.isfinite(mean_loss(new))
        if not started and is_finite and not self.judge.judges_first_cycle:
            return Losses(new=new, first=first)
        if not self._at_anchor:
            self._at_anchor = on_host(*self._losses_at(state, state.anchor, parts))
        old = together(self._at_anchor[: len(parts)])
        if old.shape != new.shape:
            raise ValueError(_lengths(new, old))
        if math.isfinite(mean_loss(old)):
            return Losses(new=new, old=old, first=first)
        if is_finite and not started:
            return Losses(new=new, first=first)  # any number is better than none
        if started and math.isfinite(mean_loss(self._at_anchor[0])):
            return self._left_to_first_look(old)
        where = "the last accepted average" if started else "the weights before the first step"
        message = (
            f"the monitor returned {mean_loss(new)} and, at {where}, {mean_loss(old)}: the monitoring batch or its "
            "loss is at fault, not the steps"
        )
        if not rotates or not started:
            raise ValueError(f"{message}. Assign a corrected one to opt.monitor and go on: the steps are kept")
        self.notices.say(message + "; such a set judges nothing")  # D7
        return Losses(new=new, old=old, first=first)

    def _unless_settled(self, state: State, candidate: Tensor, losses: Losses) -> Losses:
        """The same if the first look settles the verdict; if not, the second one, to be read (D35)."""
        new, old, test = losses.new, losses.old, self.judge.test
        if new is None or old is None or not isinstance(test, PairedTest):
            return losses
        is_open = math.isfinite(mean_loss(new)) and math.isfinite(mean_loss(old))
        if not is_open or test.settles(new, old, self.looks.share):
            return losses
        rest = self._losses_at(state, candidate, self.looks.parts[1:])
        rest += self._losses_at(state, state.anchor, self.looks.parts[len(self._at_anchor) :])
        return replace(losses, unread=tuple(rest))

    def with_second_look(self, losses: Losses, told: Sequence[Tensor]) -> Losses:
        """All losses, from what was unread and is now in the memory of the host."""
        self._at_candidate = [*self._at_candidate, told[0]]
        self._at_anchor = [*self._at_anchor, *told[1:]]
        old = together(self._at_anchor)
        if not math.isfinite(mean_loss(old)):
            return self._left_to_first_look(old)
        return replace(losses, new=together(self._at_candidate), old=old, unread=())

    def with_anchor_again(self, state: State, losses: Losses) -> Losses:
        """The same with those at the anchor as they are now, if they were of an earlier cycle and have changed (D39).

        Then the function is another one, and the best of before says nothing of it.
        """
        if not self._anchor_is_of_before or losses.new is None or losses.old is None:
            return losses
        if not math.isfinite(mean_loss(losses.new)):
            return losses  # rejected in any case
        parts = self.looks.parts[:1] if losses.by_first_look else self.looks.parts
        found = on_host(*self._losses_at(state, state.anchor, parts))
        old = together(found)
        if old.shape != losses.new.shape:
            raise ValueError(_lengths(losses.new, old))
        if not is_another_function(old, losses.old):
            return losses
        self._at_anchor = found
        state.forget_best()
        return replace(losses, old=old)

    def _left_to_first_look(self, old: Tensor) -> Losses:
        """The anchor was accepted on a first look, and is no number on the others: they have nothing to compare."""
        new, first = self._at_candidate[0], self._at_candidate[0].numel()
        self.notices.say(
            f"at the last accepted average the monitored loss is {mean_loss(old)}, because of examples outside "
            f"the first look: until that changes, only the first look at {first} examples judges a cycle"
        )
        return Losses(new=new, old=self._at_anchor[0], first=first)

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
                "FSDP2 keeps unsharded weights after an evaluation, and the optimizer must know the model to drop "
                "them: use adaqn.Monitor, or give your monitor an attribute `model`"
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
        is_new = watches and self._has_new_batch()
        if is_new or rotates:
            self.forget_anchor()
        several = state.flat.processes.count > 1
        told = on_host(summary)[0].tolist() if several else [0.0] * len(summary)
        about = (*told, watches, rotates, is_new, self._known_looks(), self._cutter.examples(state.curvature))
        rows = state.flat.processes.agreed("the monitor", error, *about, *state.flat.fingerprints(candidate))
        squares, _, _, watching, rotating, new, known, examples, w, w_norm, g, g_norm = zip(*rows, strict=True)
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
                f"process {watching.index(0.0)} has no monitor and another has one: evaluating sharded "
                "weights is collective, so give every process a monitor"
            )
        looks = self._cutter.agreed(state, examples, watching, lambda: self.placed(state, state.anchor))
        self._at_anchor = self._at_anchor[: int(min(known)) if looks == self.looks else 0]
        self.looks = looks
        if any(new) and not any(rotating):
            state.forget_best()  # D23: it is of examples that are not looked at any more
        return any(watching), any(rotating), is_number

    def _turned(self, state: State) -> Exception | None:
        """The next set of the monitor, as D7 wants it; the error if there is none, which all processes must know of."""
        monitor: Any = self.monitor
        try:
            monitor.advance()
        except Exception as error:
            return error
        if isinstance(monitor, RotatingMonitor):
            state.counters.monitor_position = monitor.position
        return None

    def _has_new_batch(self) -> bool:
        """Was it given another batch since the last cycle? What was said of the one before does not compare."""
        batch = getattr(self.monitor, "batch", None)
        is_new, self._batch = batch is not self._batch, batch
        return is_new

    def _losses_at(self, state: State, vector: Tensor, parts: Sequence[slice | None] = ONE.parts) -> list[Tensor]:
        """Of each of these parts of the batch, to be made small."""
        if not parts:
            return []
        with self.placed(state, vector):
            found = [self._pooled(state, part, at_anchor=vector is state.anchor) for part in parts]
        self._buffers_seen = BuffersSeen(getattr(self.monitor, "model", None))
        return [-losses if state.method.maximize else losses for losses in found]

    def _pooled(self, state: State, part: slice | None, *, at_anchor: bool) -> Tensor:
        """The losses of all processes at the weights as they are; with a gradient for the curvature that asks."""
        monitor: Any = self.monitor  # another process may have one and this one not
        curvature, pooled = state.curvature, state.flat.processes.pooled
        if isinstance(curvature, MonitoredGradient) and (part is None or part.start == 0):
            evaluate = MonitoredPass(monitor, state.flat, curvature.examples, part)
            losses = pooled(None if monitor is None else lambda: self._asked(state, evaluate))
            curvature.keep(evaluate, state.flat, at_anchor=at_anchor)
            return losses
        if monitor is None:
            return pooled(None)
        if part is not None:
            return pooled(lambda: monitor.losses_of(part))
        return pooled(lambda: self._asked(state, lambda: monitored_loss(monitor)))

    def _asked(self, state: State, evaluate: Callable[[], Tensor]) -> Tensor:
        """The losses; a mistake in a function of the user's own is one error that says where training stands.

        Errors of a type of their own, such as OSError or a lack of memory, are passed on: they may be waited for.
        """
        try:
            return evaluate()
        except MISTAKES as error:
            kind = type(error)
            if isinstance(self.monitor, Monitor) or kind not in MISTAKES or state.is_new:
                raise
            found = str(error) if str(error).startswith("the monitor") else f"the monitor raised {said(error)}"
            raise (kind if kind in (TypeError, RuntimeError) else ValueError)(
                f"{found}. It is called at the end of a cycle, so the weights have moved already (steps made in this "
                f"cycle: {state.tally.steps}), and nothing is lost: assign a corrected function to opt.monitor and go "
                "on, the next step judges the cycle. adaqn.Monitor(model, loss_fn, batch) finds such mistakes before "
                "the first step"
            ) from error

    def _known_looks(self) -> int:
        """How many at the anchor are known, of the model as it is? BatchNorm's statistics change each step (D8)."""
        seen = self._buffers_seen
        is_as_it_was = seen is not None and seen.unchanged(getattr(self.monitor, "model", None))
        return len(self._at_anchor) if is_as_it_was else 0


def check_first_loss(loss: float, monitor: Monitor, state: State) -> None:
    """One error for a loss that is nan before the first step, at weights that are finite.

    Of a monitor whose sets change, others may have a loss that is a number (D7).
    """
    if not math.isnan(loss) or not state.is_new or hasattr(monitor, "advance"):
        return
    if bool(state.anchor.isfinite().all()):
        raise ValueError(
            "the monitor returned nan at the weights before the first step, which are finite, so it could judge no "
            "cycle: look for nan in the monitoring batch and its loss_fn. Nothing has changed yet"
        )


def _lengths(new: Tensor, old: Tensor) -> str:
    def named(losses: Tensor) -> str:
        return f"{losses.numel()} losses" if losses.dim() else "one loss for all examples"

    return (
        f"the monitor returned {named(new)}, and {named(old)} at the last accepted average: it must return the losses "
        "of the same examples every time. The weights are as the steps of this cycle left them, and nothing is lost: "
        "to monitor other examples assign a new function to opt.monitor, and go on"
    )


def together(looks: Sequence[Tensor]) -> Tensor:
    """The losses of several looks as one tensor."""
    return looks[0] if len(looks) == 1 else torch.cat(list(looks))
