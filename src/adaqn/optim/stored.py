"""Parameters and the vectors that are kept for them: made, made anew when parameters change, saved and loaded."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaqn.optim import checkpoint
from adaqn.optim.counters import Counters, migrated
from adaqn.optim.events import CycleEvent
from adaqn.optim.flat import FlatParameters, check_one_device, trainable
from adaqn.optim.memory import Memory, number_names
from adaqn.optim.model_curvature import ModelCurvature
from adaqn.optim.monitor import RotatingMonitor
from adaqn.optim.options import Options, check_group
from adaqn.optim.packed import scaling_tensors
from adaqn.optim.rebuild import rebuilt
from adaqn.optim.record import RECENT
from adaqn.optim.sharded import check_parts, flat_parameters
from adaqn.optim.size import plan_of


def frames_to_caller() -> int:
    """How far up the stack the first line lies that is neither torch's nor ours: where a warning belongs."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "adaqn"):
        frame, level = frame.f_back, level + 1
    return level


class StoredOptimizer(Optimizer):
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

    # ------------------------------------------------------------------ memory

    def _parameters(self) -> list[Tensor]:
        """All parameters, frozen ones too, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def _trainable(self) -> list[Tensor]:
        return trainable(self._parameters())

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
        params = self._trainable()
        old = self._memory
        if old is None:
            self._memory = self._new_memory(self._flat(params))
        elif not old.flat.covers(params):
            warnings.warn(
                f"the trainable parameters changed (from {len(old.flat.params)} tensors on {old.flat.device} to "
                f"{len(params)} on {params[0].device}): the curvature history restarts; H0 keeps what it knows "
                "of those that stay",
                stacklevel=frames_to_caller(),
            )
            counters = old.counters
            self._memory = rebuilt(old, self._flat(params), lambda flat: self._new_memory(flat, counters))
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

        with checkpoint.around_torchs_loading(self, take, place):
            super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds; what schedulers patch in must stay out.
        own = ("options", "_memory", "_monitor", "_anchor_losses", "_said", "_averaging", "_idle_steps", "recent")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}, "_averaging": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_memory" in state:  # a copy, not the loading of a state_dict
            self._show_state()
