"""All that a quasi-Newton optimizer keeps for one set of parameters, and what is saved of it.

Buffers are flat; ``per_parameter`` shows each as one view per parameter, which is what ``optimizer.state`` holds: no
copy, and ``torch.save`` stores the flat buffer once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from adaqn.core.acceptance import SMALLEST_MULTIPLIER
from adaqn.core.history import Average, Pairs
from adaqn.core.momentum import Momentum
from adaqn.optim.events import FORMAT, Counters
from adaqn.optim.layout import tensor_buffer, tensor_layout, tensors_by_parameter, vector_layout
from adaqn.optim.method import Method, Parts
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.sharded import FlatSlices, WholeH0


class Scratch:
    """Two vectors to work with, under the name of what they hold at the time; nothing in them outlives a step."""

    def __init__(self, flat: FlatParameters) -> None:
        one, other = flat.new(), flat.new()
        self.gradient = one
        """g of this step, and after the momentum its average; the direction spends it."""
        self.weights = one
        """The weights, while others are in their place."""
        self.s = one
        """The displacement of a cycle."""
        self.direction = other
        """H·g."""
        self.candidate = other
        """The average of a cycle."""
        # Cut once: the per-parameter views of what every step touches.
        self.gradient_parts, self.direction_parts = flat.views(one), flat.views(other)


class State:
    """The vectors, the parts of the method that live on them, and the counters."""

    @torch.inference_mode(False)
    def __init__(
        self, flat: FlatParameters, method: Method, parts: Parts, *, momentum: bool, counters: Counters | None = None
    ) -> None:
        self.flat, self.method, self.parts = flat, method, parts
        self.scaling, self.curvature = parts.scaling, parts.curvature
        self.momentum: Momentum | None = None
        self.counters = counters or Counters()
        self.frozen = {id(p) for p in flat.params if not p.requires_grad and p.grad is not None}
        """Parameters with a gradient set by hand: they stay here, with one or without (D26)."""
        self.h0_flat = flat.for_scaling(self.scaling)
        self.buffers = {
            name: self.flat_of(name).new(*rows, dtype=dtype, device=device)
            for name, (rows, dtype, device) in vector_layout(method, momentum=False).items()
        }
        self.tensor_plan = tensor_layout(self.scaling, self.h0_flat)
        self.buffers |= {name: tensor_buffer(shapes, flat) for name, shapes in self.tensor_plan.items()}
        self.gram = torch.zeros(method.memory_size, method.memory_size, dtype=torch.float64, device=flat.device)
        self.scratch = Scratch(flat)
        self.anchor = self.buffers["anchor"]
        self.average = Average(self.buffers["window"])
        self._window_parts = flat.views(self.average.total)
        self.pairs = Pairs(self.buffers["pairs_s"], self.buffers["pairs_y"], self.gram, flat.settle)
        vectors = {name: self.buffers[f"scaling_{name}"] for name in self.scaling.vector_names}
        tensors = tensors_by_parameter(self.buffers, self.tensor_plan, len(flat.params))
        self.scaling.build(vectors, self.h0_flat.shapes, [without_prefix("scaling_", entry) for entry in tensors])
        whole = isinstance(flat, FlatSlices) and self.h0_flat is not flat
        self.h0: Any = WholeH0(self.scaling, flat) if whole else self.scaling  # type: ignore[arg-type]
        if self.curvature.rows:
            self.curvature.build(self.buffers["fisher"], flat.reduce)
        if momentum:
            self.make_momentum()
        self.restart()

    def make_momentum(self) -> None:
        """From here on the recursion sees averaged gradients."""
        if self.momentum is None:
            self.momentum = Momentum(nesterov=self.method.nesterov)
            self.buffers["momentum"] = self.flat.new()
            self.momentum.build(self.buffers["momentum"], self.flat.sizes)

    def __getstate__(self) -> dict[str, Any]:
        # Views of one buffer come out of a pickle as separate tensors, so only the buffers go in.
        names = ("flat", "method", "parts", "buffers", "gram")
        parts = {name: getattr(self, name) for name in names}
        return parts | {"numbers": [self.numbers(i) for i in range(len(self.flat.params))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffers = state["buffers"]
        State.__init__(self, state["flat"], state["method"], state["parts"], momentum="momentum" in buffers)
        if "accepted" in buffers:
            self.keep_accepted()
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)
        self.gram.copy_(state["gram"])
        self.load_numbers(state["numbers"])

    @property
    def master(self) -> Tensor | None:
        """Wide copies of low-precision parameters."""
        return self.buffers.get("master")

    @property
    def accepted(self) -> Tensor | None:
        """The last accepted candidate, from the first time that it was asked for."""
        return self.buffers.get("accepted")

    def weights(self) -> list[Tensor]:
        """The tensors that a step moves, one per parameter."""
        return self.flat.reals() if self.master is None else self.flat.views(self.master)

    def set_weights(self, vector: Tensor) -> None:
        self.flat.scatter(vector)
        if self.master is not None:
            self.master.copy_(vector)

    def flat_of(self, name: str) -> FlatParameters:
        """The vectors that a buffer of that name holds."""
        return self.h0_flat if name.startswith("scaling_") else self.flat

    @property
    def cycle_length(self) -> int:
        """L, within its bounds where it adapts: a saved state may come from wider ones."""
        if self.method.cycle_bounds is None:
            return self.method.cycle_length
        shortest, longest = self.method.cycle_bounds
        return min(max(self.counters.cycle_length or self.method.cycle_length, shortest), longest)

    @property
    def step_multiplier(self) -> float:
        """Of all step sizes: by rejections, and by the decay of the method."""
        return self.counters.step_multiplier * self.decay

    @property
    def decay(self) -> float:
        """τ/(τ + steps), where the method has a τ."""
        tau = self.method.decay_steps
        return 1.0 if tau is None else tau / (tau + self.counters.steps)

    # ------------------------------------------------------------------ within a step

    def read_gradients(self) -> list[int]:
        """Scratch ← the gradients, of an objective to be made small; returns which parameters have one."""
        present = self.flat.gather_gradients(self.scratch.gradient_parts)
        if self.method.maximize:
            self.scratch.gradient.neg_()
        return present

    def update_scaling(self, present: list[int]) -> None:
        """Show H0 the gradient; what it knows of parameters without one stays as it is."""
        if isinstance(self.h0, WholeH0):
            self.h0.learn(negated=self.method.maximize)
        else:
            self.scaling.see(self.scratch.gradient, present)

    def move_anchor_here(self) -> None:
        """The anchor ← the weights."""
        torch._foreach_copy_(self.flat.views(self.anchor), self.weights())

    def weights_are_finite(self) -> bool:
        lost = sum(not w.isfinite().all() for w in self.weights())
        return float(self.flat.reduce(torch.tensor([lost], dtype=torch.float64, device=self.flat.device))) == 0.0

    def add_to_average(self) -> None:
        torch._foreach_add_(self._window_parts, self.weights())
        self.average.count += 1

    # ------------------------------------------------------------------ starting again

    def clear_history(self) -> None:
        self.pairs.clear()
        self.scaling.on_cleared()
        self.curvature.clear()
        self.average.clear()

    def restart(self) -> None:
        """A new history from the parameters as they are (l. 1, 2); H0 keeps what it has seen."""
        self.clear_history()
        if self.momentum is not None:
            self.momentum.reset()
        self.flat.gather(self.anchor)
        for copy in (self.master, self.accepted):
            if copy is not None:
                copy.copy_(self.anchor)
        self.counters.restart()

    def keep_accepted(self) -> Tensor:
        """Make room for the last accepted candidate; from here on the end of each cycle fills it."""
        if self.accepted is None:
            # After a skip the anchor is older than the last candidate, which is gone.
            known = self.counters.started and not self.counters.skips_in_row
            accepted = self.flat.new()
            self.buffers["accepted"] = accepted.copy_(self.anchor) if known else self.flat.gather(accepted)
        return self.buffers["accepted"]

    # ------------------------------------------------------------------ saving

    def per_parameter(self) -> list[dict[str, Any]]:
        """The tensors of each parameter's state: views of the flat buffers, and the shared gram."""
        tensors = tensors_by_parameter(self.buffers, self.tensor_plan, len(self.flat.params))
        state: list[dict[str, Any]] = [{"gram": self.gram, **entry} for entry in tensors]
        for name in self.buffers.keys() - self.tensor_plan.keys():
            for entry, view in zip(state, self.flat_of(name).views(self.buffers[name]), strict=True):
                entry[name] = view
        return state

    def shown(self) -> list[dict[str, Any]]:
        """The same to look at: what lies in parts on several processes as DTensors."""
        return [
            {name: self._shown(i, name, tensor) for name, tensor in entry.items()}
            for i, entry in enumerate(self.per_parameter())
        ]

    def saved(self) -> list[dict[str, Any]]:
        """All that is saved of each parameter.

        There is always an accepted average, the anchor's in its place where none is kept: a checkpoint is loaded by
        the names that a fresh optimizer has. In several processes the tensors are copies: torch sends and copies
        whole tensors wrongly if they are views of larger ones.
        """
        entries = self.per_parameter()
        for i, entry in enumerate(entries):
            if self.accepted is None:
                entry["accepted"] = entry["anchor"].clone()
            for name, tensor in entry.items():
                is_view = name != "gram" and self.flat.processes.count > 1
                whole = tensor.clone(memory_format=torch.contiguous_format) if is_view else tensor
                entry[name] = self._shown(i, name, whole)
            entry.update(self.numbers(i))
        return entries

    def _shown(self, index: int, name: str, tensor: Tensor) -> Tensor:
        is_vector = name != "gram" and name not in self.tensor_plan
        return self.flat_of(name).shown(index, tensor) if is_vector else tensor

    def numbers(self, index: int) -> dict[str, float]:
        """The plain numbers of that parameter's state."""
        return {
            "format": FORMAT,
            **asdict(self.counters),
            "keeps_accepted": int(self.accepted is not None),
            "window_count": self.average.count,
            "pairs_start": self.pairs.start,
            "pairs_size": len(self.pairs),
            **{f"curvature_{name}": value for name, value in self.curvature.numbers().items()},
            **{f"scaling_{name}": value for name, value in self.scaling.numbers(index).items()},
            **({} if self.momentum is None else {"momentum_step": self.momentum.steps[index]}),
        }

    def load_numbers(self, saved: Sequence[dict[str, Any]]) -> None:
        """Take back what ``numbers`` gave; the buffers hold the saved tensors already."""
        first = saved[0]
        for name, now in asdict(self.counters).items():
            setattr(self.counters, name, type(now)(first[name]))
        self.counters.step_multiplier = max(
            self.counters.step_multiplier, SMALLEST_MULTIPLIER
        )  # 0.1 had no floor (D24)
        self.average.count = int(first["window_count"])
        self.pairs.restore(int(first["pairs_start"]), int(first["pairs_size"]))
        self.curvature.load_numbers(without_prefix("curvature_", first))
        for index, entry in enumerate(saved):
            self.scaling.load_numbers(index, without_prefix("scaling_", entry))
            if self.momentum is not None:
                self.momentum.steps[index] = int(entry["momentum_step"])


def without_prefix(prefix: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in entry.items() if key.startswith(prefix)}
