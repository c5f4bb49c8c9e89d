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
from adaqn.parameters.buffers import Layout, tensor_buffer, tensor_layout, tensors_by_parameter
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.sharded import FlatSlices, WholeH0

Known = tuple[dict[str, Tensor], dict[str, float]]
"""The tensors and the numbers that H0 keeps of one parameter."""


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
        self.tensor_plan = tensor_layout(scaling, self.h0_flat)
        self.buffers |= {name: tensor_buffer(shapes, flat) for name, shapes in self.tensor_plan.items()}
        self.gram = torch.zeros(memory_size, memory_size, dtype=torch.float64, device=flat.device)
        self.shared: dict[str, Tensor] = {"gram": self.gram}
        """Tensors of all parameters together; each parameter's saved state has them."""
        self.pairs = Pairs(self.buffers["pairs_s"], self.buffers["pairs_y"], self.gram, flat.settle)
        vectors = {name: self.buffers[f"scaling_{name}"] for name in scaling.vector_names}
        tensors = tensors_by_parameter(self.buffers, self.tensor_plan, len(flat.params))
        scaling.build(vectors, self.h0_flat.shapes, [without_prefix("scaling_", entry) for entry in tensors])
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
            self.scaling.see(gradient, present, ok)

    def show_vector_to_h0(self, gradient: Tensor, present: list[int]) -> None:
        """The same with a gradient that need not lie in ``.grad`` any more."""
        if isinstance(self.h0, WholeH0):
            self.h0.learn_from(gradient, present)
        else:
            self.scaling.see(gradient, present)

    def show_pair_to_h0(self, s: Tensor, y: Tensor, rms: float) -> Tensor | None:
        """The same with a pair, ``rms`` the root mean square of s; returns y·H0 y where that comes with it."""
        if isinstance(self.h0, WholeH0):
            self.h0.learn_pair(s, y, rms)
            return None
        return self.scaling.learn(s, y, rms)

    def flat_of(self, name: str) -> FlatParameters:
        """The vectors that a buffer of that name holds."""
        return self.h0_flat if name.startswith("scaling_") else self.flat

    def h0_by_parameter(self) -> list[Known]:
        """What H0 knows of each parameter: views, and numbers."""
        vectors = {name: self.h0_flat.views(vector) for name, vector in self.scaling.vectors.items()}
        return [
            ({name: views[i] for name, views in vectors.items()} | self.scaling.tensors[i], self.scaling.numbers(i))
            for i in range(len(self.flat.params))
        ]

    def take_h0(self, old: FlatParameters, known: list[Known]) -> None:
        """Carry over what H0 of other vectors knew of the parameters that stay."""
        before = {id(p): i for i, p in enumerate(old.params)}
        for i, (p, (tensors, _)) in enumerate(zip(self.flat.params, self.h0_by_parameter(), strict=True)):
            j = before.get(id(p))
            if j is not None and self.flat.shapes[i] == old.shapes[j]:
                for name, tensor in tensors.items():
                    tensor.copy_(known[j][0][name])
                self.scaling.load_numbers(i, known[j][1])

    # ------------------------------------------------------------------ saving

    def per_parameter(self) -> list[dict[str, Any]]:
        """The tensors of each parameter's state: views of the flat buffers, and what is shared."""
        tensors = tensors_by_parameter(self.buffers, self.tensor_plan, len(self.flat.params))
        state: list[dict[str, Any]] = [{**self.shared, **entry} for entry in tensors]
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

        In several processes the tensors are copies: torch sends and copies whole tensors wrongly if they are views of
        larger ones.
        """
        entries = self.per_parameter()
        for i, entry in enumerate(entries):
            self.fill_in(entry)
            for name, tensor in entry.items():
                is_view = name not in self.shared and self.flat.processes.count > 1
                whole = tensor.clone(memory_format=torch.contiguous_format) if is_view else tensor
                entry[name] = self._shown(i, name, whole)
            entry.update(self.numbers(i))
        return entries

    def fill_in(self, entry: dict[str, Any]) -> None:
        """Tensors that a saved state has and the buffers have not."""

    def _shown(self, index: int, name: str, tensor: Tensor) -> Tensor:
        is_vector = name not in self.shared and name not in self.tensor_plan
        return self.flat_of(name).shown(index, tensor) if is_vector else tensor

    def numbers(self, index: int) -> dict[str, float]:
        """The plain numbers of that parameter's state."""
        return {
            "pairs_start": self.pairs.start,
            "pairs_size": len(self.pairs),
            **{f"scaling_{name}": value for name, value in self.scaling.numbers(index).items()},
        }

    def load_numbers(self, saved: Sequence[dict[str, Any]]) -> None:
        """Take back what ``numbers`` gave; the buffers hold the saved tensors already."""
        self.pairs.restore(int(saved[0]["pairs_start"]), int(saved[0]["pairs_size"]))
        for index, entry in enumerate(saved):
            self.scaling.load_numbers(index, without_prefix("scaling_", entry))

    def load(self, entries: Sequence[dict[str, Any]]) -> None:
        """Take back what ``saved`` gave."""
        vectors = self.buffers.keys() - self.tensor_plan.keys()
        for index, (entry, tensors) in enumerate(zip(entries, self.per_parameter(), strict=True)):
            for name, ours in tensors.items():
                ours.copy_(self.flat_of(name).held(index, entry[name], ours) if name in vectors else entry[name])
        self.load_numbers(entries)
        if any(entry["pairs_s"].dtype != self.pairs.S.dtype for entry in entries):
            self.pairs.recompute()


def without_prefix(prefix: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in entry.items() if key.startswith(prefix)}
