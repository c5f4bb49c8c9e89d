"""A method for whole gradients as a choice of parts, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from adaqn.core.checks import at_least_one, at_least_zero, choose, flag, not_nan, step_size
from adaqn.core.line_search import LineSearch
from adaqn.core.line_search_names import LINE_SEARCHES
from adaqn.core.scaling import Scaling
from adaqn.fullbatch.events import IterationCallback
from adaqn.fullbatch.limited import LimitedMemory
from adaqn.optim.settings import StorageOptions
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.processes import check_process_group
from adaqn.parameters.sharded import check_scaling, flat_parameters

SearchName = Literal["strong_wolfe", "hager_zhang", "backtracking"]
WORK_VECTORS = 8
"""Within a step: origin, point, direction, the spent gradient, and the gradients of up to four points of a search."""
HISTORY_DTYPES = (None, torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class WholeMethod:
    """The parts, as yet without vectors."""

    scaling: Scaling
    search: LineSearch | None
    kind: type[LimitedMemory] = LimitedMemory
    made_of: Mapping[str, Any] = field(default_factory=dict)
    """What the memory is made of beside parameters and H0."""
    noise: float | None = None
    """Differences of losses that mean nothing; ``None`` goes by what was seen."""
    maximize: bool = False
    shard_history: bool = False
    on_cycle: tuple[IterationCallback, ...] = ()
    process_group: Any = None

    def __post_init__(self) -> None:
        check_process_group(self.process_group)
        flag("maximize", self.maximize)

    def flat(self, params: list[Tensor]) -> FlatParameters:
        flat = flat_parameters(
            params, self.process_group, self.scaling, shard_history=self.shard_history,
            vectors=2 * self.made_of.get("size", 0) + WORK_VECTORS,
        )  # fmt: skip
        check_scaling(flat, self.scaling, "give scaling='kronecker' or 'adam', or tell its blocks in Scaling.blocks")
        return flat

    def memory(self, params: list[Tensor]) -> LimitedMemory:
        return self.kind(self.flat(params), self.scaling, **self.made_of)

    def bytes_needed(self, params: list[Tensor]) -> int:
        """History and work space of this process."""
        flat = self.flat(params)
        work = WORK_VECTORS * flat.n * flat.dtype.itemsize
        return work + self.kind.bytes_needed(flat, self.scaling, **self.made_of)


def make_search(line_search_fn: Any) -> LineSearch | None:
    """By name, an object of one's own, or none."""
    if line_search_fn is None or (callable(line_search_fn) and not isinstance(line_search_fn, str)):
        return line_search_fn
    return choose("line_search_fn", line_search_fn, LINE_SEARCHES)


def search_name(line_search_fn: Any) -> str | None:
    """As a param group shows it: a saved state holds plain values alone."""
    if line_search_fn is None or isinstance(line_search_fn, str):
        return line_search_fn
    return type(line_search_fn).__name__


def group_defaults(
    lr: float | Tensor,
    max_iter: int,
    max_eval: int | None,
    tolerance_grad: float,
    tolerance_change: float,
    line_search_fn: Any,
) -> dict[str, Any]:
    """What param groups show of the limits of a step, by the names that torch's L-BFGS has for them."""
    at_least_one("max_iter", max_iter)
    return {
        "lr": step_size("lr", lr),
        "max_iter": max_iter,
        "max_eval": max(max_iter * 5 // 4, max_iter + 5) if max_eval is None else at_least_one("max_eval", max_eval),
        "tolerance_grad": not_nan("tolerance_grad", tolerance_grad),
        "tolerance_change": not_nan("tolerance_change", tolerance_change),
        "line_search_fn": search_name(line_search_fn),
    }


def make_noise(noise: Any) -> float | None:
    if isinstance(noise, str):
        return choose("noise", noise, {"auto": None})
    return at_least_zero("noise", noise)


def make_storage(storage: StorageOptions | None) -> StorageOptions:
    """Those fields of it that whole gradients have a use for."""
    if storage is None:
        return StorageOptions()
    if not isinstance(storage, StorageOptions):
        raise TypeError(f"storage must be an adaqn.StorageOptions, got {storage!r}")
    for name in ("fisher_dtype", "fisher_device"):
        if getattr(storage, name) is not None:
            raise ValueError(f"{name} in storage: whole gradients need no Fisher matrix, so leave it out")
    for name in ("master_weights", "shard_history"):
        flag(name, getattr(storage, name))
    if storage.history_dtype not in HISTORY_DTYPES:
        raise ValueError(
            f"history_dtype must be torch.float32, torch.float64 or torch.bfloat16, got {storage.history_dtype}"
        )
    return storage
