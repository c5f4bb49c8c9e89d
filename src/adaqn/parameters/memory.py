"""What a quasi-Newton method keeps for one set of parameters: flat buffers, pairs and H0 on them, and what is saved.

Buffers are flat; ``per_parameter`` shows each as one view per parameter, which is what ``optimizer.state`` holds: no
copy, and ``torch.save`` stores the flat buffer once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adaqn.core.history import Pairs
from adaqn.core.scaling import Scaling
from adaqn.parameters.buffers import Layout, tensor_buffer, tensors_by_parameter
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.h0_layout import layout_for
from adaqn.parameters.processes import is_dtensor
from adaqn.parameters.slices import FlatSlices, WholeH0


class Memory:
    """The vectors of a method, and the parts that live on them.

    Args:
        flat: the parameters as one vector.
        scaling: H0; it gets its buffers here.
        plan: the buffers as long as the parameters, among them ``pairs_s``, ``pairs_y`` and H0's.
        memory_size: the number of pairs.
    """

    @torch.inference_mode(False)
    def __init__(self, flat: FlatParameters, scaling: Scaling, plan: Layout, memory_size: int) -> None:
        self.flat, self.scaling = flat, scaling
        self.h0_flat = flat.for_scaling(scaling)
        self.buffers = {
            name: self.flat_of(name).new(*rows, dtype=dtype, device=device)
            for name, (rows, dtype, device) in plan.items()
        }
        self.layout = layout_for(self.h0_flat, scaling)
        self.buffers |= {name: tensor_buffer(shapes, flat) for name, shapes in self.layout.plan.items()}
        self.gram = torch.zeros(memory_size, memory_size, dtype=torch.float64, device=flat.device)
        self.shared: dict[str, Tensor] = {"gram": self.gram}
        """Tensors of all parameters together; each parameter's saved state has them."""
        self.pairs = Pairs(self.buffers["pairs_s"], self.buffers["pairs_y"], self.gram, flat.settle)
        vectors = {name: self.buffers[f"scaling_{name}"] for name in scaling.vector_names}
        tensors = [without_prefix("scaling_", entry) for entry in self.h0_tensors()]
        scaling.build(vectors, self.layout.shapes, tensors, **self.layout.places())
        whole = isinstance(flat, FlatSlices) and self.h0_flat is not flat
        self.h0: Any = WholeH0(scaling, flat) if whole else scaling  # type: ignore[arg-type]

    # ------------------------------------------------------------------ the weights

    @property
    def master(self) -> Tensor | None:
        """Wide copies of low-precision parameters."""
        return self.buffers.get("master")

    def weights(self) -> list[Tensor]:
        """The tensors that a step moves, one per parameter."""
        return self.flat.reals() if self.master is None else self.flat.views(self.master)

    def set_weights(self, vector: Tensor) -> None:
        self.flat.scatter(vector)
        if self.master is not None:
            self.master.copy_(vector)

    def adopt_first(self) -> None:
        """Weights of processes that round differently drift apart, and what H0 knows: the first one's for all."""
        if not self.flat.is_whole:
            self.flat.reals()
            self.flat.publish()
            return
        weights = self.flat.gather(self.flat.new()) if self.master is None else self.master
        learnt = [buffer for name, buffer in self.buffers.items() if name.startswith(("scaling_", "momentum"))]
        for vector in (weights, *learnt):
            vector.copy_(self.flat.processes.first(vector))
        self.set_weights(weights)

    def weights_are_finite(self) -> bool:
        lost = sum(not w.isfinite().all() for w in self.weights())
        return float(self.flat.reduce(torch.tensor([lost], dtype=torch.float64, device=self.flat.device))) == 0.0

    # ------------------------------------------------------------------ H0

    def show_to_h0(self, gradient: Tensor, present: list[int], ok: Tensor, *, negated: bool) -> None:
        """H0 sees a gradient, whose sign was changed if ``negated``; what it knows of other parameters stays.

        All of it stays where ``ok`` is 0: the gradient was not finite.
        """
        if isinstance(self.h0, WholeH0):
            self.h0.learn(ok, negated=negated)
        else:
            self.scaling.see(gradient, self.layout.parts_of(present), ok)

    def show_vector_to_h0(self, gradient: Tensor, present: list[int]) -> None:
        """The same with a gradient that need not lie in ``.grad`` any more."""
        if isinstance(self.h0, WholeH0):
            self.h0.learn_from(gradient, present)
        else:
            self.scaling.see(gradient, self.layout.parts_of(present))

    def show_pair_to_h0(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        """The same with a pair, ``rms`` the root mean square of s; returns y·H0 y where that comes with it."""
        if isinstance(self.h0, WholeH0):
            self.h0.learn_pair(s, y, rms)
            return None
        return self.scaling.learn(s, y, rms)

    def flat_of(self, name: str) -> FlatParameters:
        """The vectors that a buffer of that name holds."""
        return self.h0_flat if name.startswith("scaling_") else self.flat

    def h0_tensors(self) -> list[dict[str, Tensor]]:
        """Of each part that H0 sees as a parameter of its own, what it keeps: views."""
        return tensors_by_parameter(self.buffers, self.layout.plan, len(self.layout.shapes))

    def h0_by_parameter(self) -> list[dict[str, Any]]:
        """What H0 knows of each parameter, as it is saved; with blocks that are dealt out a common work of all."""
        tensors = self.h0_tensors()
        return [
            {f"scaling_{name}": self.h0_flat.saved(i, view) for name, view in self._h0_vectors(i).items()}
            | self.layout.saved(i, tensors)
            | self._h0_numbers(i)
            for i in range(len(self.flat.params))
        ]

    def take_h0(self, old: FlatParameters, known: list[dict[str, Any]]) -> None:
        """Carry over what H0 of other vectors knew of the parameters that stay."""
        before = {id(p): i for i, p in enumerate(old.params)}
        for i, p in enumerate(self.flat.params):
            j = before.get(id(p))
            if j is not None and self.flat.saved_shape(i) == old.saved_shape(j):
                for name, view in self._h0_vectors(i).items():
                    view.copy_(self.h0_flat.held(i, known[j][f"scaling_{name}"], view))
                self._load_h0(i, known[j])

    def _h0_vectors(self, index: int) -> dict[str, Tensor]:
        return {name: self.h0_flat.views(vector)[index] for name, vector in self.scaling.vectors.items()}

    def _h0_numbers(self, index: int) -> dict[str, float]:
        (part, *_) = self.layout.parts_of([index])
        return {f"scaling_{name}": value for name, value in self.scaling.numbers(part).items()}

    def _load_h0(self, index: int, entry: dict[str, Any]) -> None:
        """Numbers and matrices; the vectors are there."""
        for part in self.layout.parts_of([index]):
            self.scaling.load_numbers(part, without_prefix("scaling_", entry))
        self.layout.load(index, entry, self.h0_tensors())

    # ------------------------------------------------------------------ saving

    def per_parameter(self) -> list[dict[str, Any]]:
        """The tensors of each parameter's state: views of the flat buffers, and what is shared."""
        tensors, count = self.h0_tensors(), len(self.flat.params)
        state: list[dict[str, Any]] = [{**self.shared, **self.layout.to_look_at(i, tensors)} for i in range(count)]
        for name in self._vector_names():
            for entry, view in zip(state, self.flat_of(name).views(self.buffers[name]), strict=True):
                entry[name] = view
        return state

    def shown(self) -> list[dict[str, Any]]:
        """The same to look at: what lies in parts on several processes as DTensors."""
        vectors = self._vector_names()
        return [
            {name: self.flat_of(name).shown(i, t) if name in vectors else t for name, t in entry.items()}
            for i, entry in enumerate(self.per_parameter())
        ]

    def saved(self) -> list[dict[str, Any]]:
        """All that is saved of each parameter.

        In several processes the tensors are copies: torch sends and copies whole tensors wrongly if they are views of
        larger ones.
        """
        entries, tensors = self.per_parameter(), self.h0_tensors()
        for i, entry in enumerate(entries):
            self.fill_in(entry)
            for name in self.layout.plan:
                entry.pop(name, None)
            for name in [name for name in entry if name not in self.shared]:
                entry[name] = self.flat_of(name).saved(i, self._own_memory(entry[name]))
            entry.update({name: self._own_memory(t) for name, t in self.layout.saved(i, tensors).items()})
            entry.update(self.numbers(i))
        return entries

    def _own_memory(self, tensor: Tensor) -> Tensor:
        if self.flat.processes.count == 1 or is_dtensor(tensor):
            return tensor
        return tensor.clone(memory_format=torch.contiguous_format)

    def _vector_names(self) -> list[str]:
        """The buffers as long as the parameters, in an order that all processes share: saving may be common work."""
        return [name for name in self.buffers if name not in self.layout.plan]

    def fill_in(self, entry: dict[str, Any]) -> None:
        """Tensors that a saved state has and the buffers have not."""

    def numbers(self, index: int) -> dict[str, float]:
        """The plain numbers of that parameter's state."""
        return {
            "pairs_start": self.pairs.start,
            "pairs_size": len(self.pairs),
            **self._h0_numbers(index),
        }

    def load_numbers(self, saved: Sequence[dict[str, Any]]) -> None:
        """Take back what ``numbers`` gave; the buffers hold the saved tensors already."""
        self.pairs.restore(int(saved[0]["pairs_start"]), int(saved[0]["pairs_size"]))
        for index, entry in enumerate(saved):
            for part in self.layout.parts_of([index]):
                self.scaling.load_numbers(part, without_prefix("scaling_", entry))

    def load(self, entries: Sequence[dict[str, Any]]) -> None:
        """Take back what ``saved`` gave."""
        vectors = self._vector_names()
        for index, (entry, views) in enumerate(zip(entries, self.per_parameter(), strict=True)):
            for name, ours in views.items():
                if name in vectors:
                    ours.copy_(self.flat_of(name).held(index, entry[name], ours))
                elif name in self.shared:
                    ours.copy_(entry[name])
        self.load_numbers(entries)
        tensors = self.h0_tensors()
        for index, entry in enumerate(entries):
            self.layout.load(index, entry, tensors)
        if any(entry["pairs_s"].dtype != self.pairs.S.dtype for entry in entries):
            self.pairs.recompute()


def without_prefix(prefix: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in entry.items() if key.startswith(prefix)}
