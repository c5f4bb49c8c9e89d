"""What surrounds the algorithm: parameters and their memory, saving and loading, counting and telling."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaqn.core.acceptance import mean_loss
from adaqn.core.outcome import Outcome
from adaqn.optim import checkpoint
from adaqn.optim.counters import Counters, migrated
from adaqn.optim.distributed import reshard
from adaqn.optim.events import CycleEvent, Stats
from adaqn.optim.explain import Explanation, explain
from adaqn.optim.flat import FlatParameters, check_one_device
from adaqn.optim.memory import Memory, number_names
from adaqn.optim.model_curvature import ModelCurvature
from adaqn.optim.monitor import RotatingMonitor
from adaqn.optim.options import Options, check_group
from adaqn.optim.packed import scaling_tensors
from adaqn.optim.rebuild import rebuilt
from adaqn.optim.record import RECENT, record_of
from adaqn.optim.sharded import FlatShards, check_parts, flat_parameters
from adaqn.optim.size import plan_of, size_of_state
from adaqn.optim.warm_start import check_source, fill_scaling, source_states

IDLE_WARNING = 10
"""Steps in a row in which no parameter had a gradient, after which a warning says so."""
UNSTORED_WARNING = 50
"""Cycles in a row without a stored pair after which a warning says that only H0 is at work."""

MonitorFunction = Callable[[], Any]
Products = tuple[float | None, float | None, float | None]
"""s·s, s·y and y·y."""
NO_PAIR: Products = (None, None, None)


def frames_to_caller() -> int:
    """How far up the stack the first line lies that is neither torch's nor ours: where a warning belongs."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "adaqn"):
        frame, level = frame.f_back, level + 1
    return level


class HistoryOptimizer(Optimizer):
    """An optimizer whose state is a history of vectors as long as all parameters together."""

    def __init__(self, params: Any, options: Options, *, lr: float | Tensor, weight_decay: float = 0.0) -> None:
        self.options = options
        self._memory: Memory | None = None
        self._monitor = options.monitor
        self._anchor_losses: Tensor | None = None
        self._said: set[str] = set()
        self._averaging = False
        self._idle_steps = 0
        self.recent: deque[CycleEvent] = deque(maxlen=RECENT)
        """The last cycles, for :meth:`explain`; not saved: after loading a state it starts anew."""
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._trainable()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Also in mid-training: the curvature history then restarts at the next step, and says so."""
        group = {**self.defaults, **param_group}
        check_group(group)
        scalars = {k: group[k].reshape(()) for k in ("lr", "weight_decay") if isinstance(group[k], Tensor)}
        super().add_param_group({**param_group, **scalars})
        everything = self._parameters()
        try:
            check_one_device(everything)
            if isinstance(self.options.curvature, ModelCurvature):
                self.options.curvature.check(everything)
        except ValueError:
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ what a person reads

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

    # ------------------------------------------------------------------ memory

    def _parameters(self) -> list[Tensor]:
        """All parameters, frozen ones too, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def _trainable(self) -> list[Tensor]:
        params = [p for p in self._parameters() if p.requires_grad]
        if not params:
            raise ValueError("no parameter requires a gradient: unfreeze what should be trained first")
        return params

    def _flat(self, params: list[Tensor]) -> FlatParameters:
        """The vector of these parameters, as they lie on the processes at work now."""
        o = self.options
        flat = flat_parameters(params, o.process_group, shard_history=o.shard_history)
        check_parts(flat, o.scaling, o.curvature, o.precision.fisher_device)
        return flat

    def _new_memory(self, flat: FlatParameters, counters: Counters | None = None) -> Memory:
        o = self.options
        if isinstance(o.curvature, ModelCurvature):
            o.curvature.attach(flat)
        return Memory(flat, o.memory_size, o.scaling, o.curvature, o.precision, o.momentum, counters)

    def _cycle_length(self, c: Counters) -> int:
        """L, within its bounds where it adapts: a saved state may come from wider ones."""
        if self.options.cycle_bounds is None:
            return self.options.cycle_length
        shortest, longest = self.options.cycle_bounds
        return min(max(c.cycle_length or self.options.cycle_length, shortest), longest)

    def _current_memory(self) -> Memory:
        """The memory for the parameters that require gradients now; made anew when they have changed."""
        trainable = self._trainable()
        old = self._memory
        if old is None:
            self._memory = self._new_memory(self._flat(trainable))
        elif not old.flat.covers(trainable):
            warnings.warn(
                f"the trainable parameters changed (from {len(old.flat.params)} tensors on {old.flat.device} to "
                f"{len(trainable)} on {trainable[0].device}): the curvature history restarts; H0 keeps what it knows "
                "of those that stay",
                stacklevel=frames_to_caller(),
            )
            counters = old.counters
            self._memory = rebuilt(old, self._flat(trainable), lambda flat: self._new_memory(flat, counters))
            self._anchor_losses = None
        if self._memory is not old:
            self._show_state()
        assert self._memory is not None
        return self._memory

    def _show_state(self) -> None:
        """``self.state`` holds views of the flat buffers: one entry per trainable parameter."""
        self.state.clear()
        if self._memory is not None:
            self.state.update(zip(self._memory.flat.params, self._memory.shown(), strict=True))

    # ------------------------------------------------------------------ saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers by parameter; may be saved and loaded at any step."""
        if self._memory is None:
            return super().state_dict()
        # A framework may have put copies on another device in the place of our views.
        self.state.clear()
        self.state.update(zip(self._memory.flat.params, self._memory.saved(), strict=True))
        try:
            return super().state_dict()
        finally:
            self._show_state()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if it does not fit, one error and nothing is changed."""
        everything = self._parameters()
        taken: list[tuple[FlatParameters, list[checkpoint.Entry]]] = []

        def take(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            entries = {i: migrated(e) for i, e in checkpoint.saved_entries(saved, len(everything)).items()}
            if entries:
                flat = self._flat([everything[i] for i in entries])
                names = number_names(self.options.scaling, self.options.curvature, self.options.momentum)
                packed = scaling_tensors(self.options.scaling, flat.for_scaling(self.options.scaling))
                checkpoint.check(list(entries.values()), flat, plan_of(self.options), packed, names)
                taken.append((flat, list(entries.values())))
            return {**saved, "state": {}}

        def place(_: Optimizer) -> None:
            self._anchor_losses = None
            self._memory = None
            self.recent.clear()
            for flat, entries in taken:
                self._memory = self._new_memory(flat)
                checkpoint.restore(self._memory, entries)
                if isinstance(self._monitor, RotatingMonitor):
                    self._monitor.position = self._memory.counters.monitor_position
            self._show_state()

        # The last hook before torch's own loading, and the first after it.
        before = self.register_load_state_dict_pre_hook(take)
        after = self.register_load_state_dict_post_hook(place, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds; what schedulers patch in must stay out.
        own = ("options", "_memory", "_monitor", "_anchor_losses", "_said", "_averaging", "_idle_steps", "recent")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}, "_averaging": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_memory" in state:  # a copy, not the loading of a state_dict
            self._show_state()

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
