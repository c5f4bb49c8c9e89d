"""All that a quasi-Newton optimizer keeps for one set of parameters, and what may be saved of it.

Buffers are flat, ``(rows, n)``, or hold a scaling's tensors one behind the other; ``per_parameter`` shows each as one
view per parameter, which is what ``optimizer.state`` holds: no copy, and ``torch.save`` stores the flat buffer once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from adaqn.core.curvature import Curvature
from adaqn.core.history import Average, Pairs
from adaqn.core.momentum import Momentum
from adaqn.core.scaling import Scaling
from adaqn.optim.counters import FORMAT, Counters
from adaqn.optim.flat import FlatParameters
from adaqn.optim.packed import by_parameter, new_buffer, scaling_tensors
from adaqn.optim.sharded import FlatSlices, WholeH0, show

WORK = ("work_g", "work_d")
"""Buffers whose content matters only within a step: they are not saved."""


@dataclass(frozen=True)
class Precision:
    """Where the history lives and how wide it is; ``None`` follows the parameters."""

    history_dtype: torch.dtype | None = None
    fisher_dtype: torch.dtype | None = None
    fisher_device: torch.device | None = None
    master_weights: bool = False


class Memory:
    """Buffers, rings and counters for the parameters in ``flat``."""

    @torch.inference_mode(False)
    def __init__(
        self,
        flat: FlatParameters,
        memory_size: int,
        scaling: Scaling,
        curvature: Curvature,
        precision: Precision,
        momentum: Momentum | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.flat, self.scaling, self.curvature, self.precision = flat, scaling, curvature, precision
        self.momentum = momentum
        self.counters = counters or Counters()
        self.h0_flat = flat.for_scaling(scaling)
        self.buffers = {
            name: self.flat_of(name).new(*rows, dtype=dtype, device=device)
            for name, (rows, dtype, device) in layout(memory_size, scaling, curvature, precision, momentum).items()
        }
        self.packed = scaling_tensors(scaling, self.h0_flat)
        self.buffers |= {name: new_buffer(shapes, flat) for name, shapes in self.packed.items()}
        self.gram = torch.zeros(memory_size, memory_size, dtype=torch.float64, device=flat.device)
        self.g, self.d = (self.buffers.pop(name) for name in WORK)
        self.anchor = self.buffers["anchor"]
        self.average = Average(self.buffers["window"])
        # Cut once: the per-parameter views of what every step touches.
        self.g_parts, self.d_parts, self.window_parts = map(flat.views, (self.g, self.d, self.average.total))
        self.pairs = Pairs(self.buffers["pairs_s"], self.buffers["pairs_y"], self.gram, flat.settle)
        vectors = {name: self.buffers[f"scaling_{name}"] for name in scaling.vector_names}
        tensors = by_parameter(self.buffers, self.packed, len(flat.params))
        scaling.build(vectors, self.h0_flat.shapes, [_without_prefix("scaling_", entry) for entry in tensors])
        self.h0: Any = WholeH0(scaling, flat) if isinstance(flat, FlatSlices) and self.h0_flat is not flat else scaling
        if curvature.rows:
            curvature.build(self.buffers["fisher"], flat.reduce)
        if momentum is not None:
            momentum.build(self.buffers["momentum"], flat.sizes)
        self.restart()

    def __getstate__(self) -> dict[str, Any]:
        # Views of one buffer come out of a pickle as separate tensors, so only the buffers go in.
        names = ("flat", "scaling", "curvature", "precision", "momentum", "buffers", "gram")
        parts = {name: getattr(self, name) for name in names}
        return parts | {"numbers": [self.numbers(i) for i in range(len(self.flat.params))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        flat, buffers, gram = state["flat"], state["buffers"], state["gram"]
        parts = (state[name] for name in ("scaling", "curvature", "precision", "momentum"))
        Memory.__init__(self, flat, len(gram), *parts)
        if "accepted" in buffers:
            self.keep_accepted()
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)
        self.gram.copy_(gram)
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

    def update_scaling(self, present: list[int], *, maximize: bool) -> None:
        """Show H0 the gradient; what it knows of parameters without one stays as it is."""
        if isinstance(self.h0, WholeH0):
            self.h0.learn(negated=maximize)
        else:
            show(self.scaling, self.g, present)

    def average_gradient(self, present: list[int]) -> None:
        """From here on ``g`` is the averaged gradient, if there is momentum."""
        if self.momentum is not None:
            self.momentum.mix(self.g, present)

    def add_to_window(self) -> None:
        torch._foreach_add_(self.window_parts, self.weights())
        self.average.count += 1

    def clear_history(self) -> None:
        self.pairs.clear()
        self.scaling.on_cleared()
        self.curvature.clear()
        self.average.clear()

    def restart(self) -> None:
        """A new history from the parameters as they are; H0 keeps what it has seen."""
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

    def per_parameter(self) -> list[dict[str, Any]]:
        """The tensors of each parameter's state: views of the flat buffers, and the shared gram."""
        tensors = by_parameter(self.buffers, self.packed, len(self.flat.params))
        state: list[dict[str, Any]] = [{"gram": self.gram, **entry} for entry in tensors]
        for name in self.buffers.keys() - self.packed.keys():
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
        is_vector = name != "gram" and name not in self.packed
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

    def load_numbers(self, saved: list[dict[str, Any]]) -> None:
        """Take back what ``numbers`` gave; the buffers hold the saved tensors already."""
        first = saved[0]
        for name, now in asdict(self.counters).items():
            setattr(self.counters, name, type(now)(first[name]))
        self.average.count = int(first["window_count"])
        self.pairs.restore(int(first["pairs_start"]), int(first["pairs_size"]))
        self.curvature.load_numbers(_without_prefix("curvature_", first))
        for index, entry in enumerate(saved):
            self.scaling.load_numbers(index, _without_prefix("scaling_", entry))
            if self.momentum is not None:
                self.momentum.steps[index] = int(entry["momentum_step"])


Layout = dict[str, tuple[tuple[int, ...], torch.dtype | None, torch.device | None]]


def layout(
    memory_size: int, scaling: Scaling, curvature: Curvature, precision: Precision, momentum: Momentum | None = None
) -> Layout:
    """Name → (rows, dtype, device) of every buffer as long as the parameters; ``None`` follows them."""
    history = ((memory_size,), precision.history_dtype, None)
    plan: Layout = dict.fromkeys((*WORK, "anchor", "window"), ((), None, None))
    plan |= {"pairs_s": history, "pairs_y": history}
    if curvature.rows:
        plan["fisher"] = ((curvature.rows,), precision.fisher_dtype, precision.fisher_device)
    plan |= {f"scaling_{name}": ((), None, None) for name in scaling.vector_names}
    if momentum is not None:
        plan["momentum"] = ((), None, None)
    if precision.master_weights:
        plan["master"] = ((), None, None)
    return plan


def number_names(scaling: Scaling, curvature: Curvature, momentum: Momentum | None = None) -> set[str]:
    """The plain numbers in the saved state of each parameter."""
    return {
        *("format", "keeps_accepted", "window_count", "pairs_start", "pairs_size"),
        *(field.name for field in fields(Counters)),
        *(f"curvature_{name}" for name in curvature.number_names),
        *(f"scaling_{name}" for name in scaling.number_names),
        *(() if momentum is None else ("momentum_step",)),
    }


def _without_prefix(prefix: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in entry.items() if key.startswith(prefix)}
