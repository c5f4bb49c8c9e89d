"""Param groups: their step sizes, weight decay and momentum, checked, and as a step needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from adaqn.core.checks import step_size

Group = dict[str, Any]
_PER_GROUP = ("lr", "weight_decay", "momentum")
_OF_ALL = {
    "cycle_length", "memory_size", "fisher_size", "monitor", "scaling", "maximize", "nesterov", "damping", "preset",
    "process_group", "shard_history", "pairs", "reject", "storage",
}  # fmt: skip


def check_group(group: Group, defaults: Group) -> None:
    """The numbers of a param group; other options are for all parameters at once."""
    for name in ("lr", "weight_decay"):
        step_size(name, group[name])
    if "momentum" in defaults:
        check_momentum(group["momentum"])
    unknown = (_OF_ALL | ({"momentum"} - set(defaults))) & set(group)
    if unknown:
        own = " and ".join(name for name in _PER_GROUP if name in defaults)
        raise ValueError(
            f"{sorted(unknown)} in a param group: one quasi-Newton matrix spans all parameters, so give it to "
            f"the optimizer; groups may have their own {own}"
        )


def check_momentum(beta: Any) -> float:
    """β, also as a scheduler has left it."""
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise TypeError(f"momentum must be a number, got {beta!r}")
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"momentum must lie in [0, 1), got {beta}: 0 is none, 0.9 is usual")
    return float(beta)


def check_scheduled(groups: Iterable[Group]) -> None:
    """What schedulers change, before each step."""
    for group in groups:
        # A tensor's value would have to be read from the device.
        if not isinstance(group["lr"], Tensor) and not group["lr"] >= 0.0:
            raise ValueError(f"lr must be at least 0, got {group['lr']}: was it set by a scheduler?")
        if "momentum" in group:
            check_momentum(group["momentum"])


class StepSizes:
    """lr, weight decay and momentum of each trained parameter, as the groups have them now.

    Args:
        every: all param groups.
        groups: the group of each trained parameter, in the order of the vector.
        multiplier: of all step sizes.
    """

    def __init__(self, every: Sequence[Group], groups: Sequence[Group], multiplier: float) -> None:
        self.groups, self.multiplier = groups, multiplier
        first = groups[0]["lr"]
        self.common = first if all(_same(group["lr"], first) for group in every) else None
        """lr, where all groups have the same."""

    def roots(self) -> list[float | Tensor] | None:
        """Λ^½ by parameter; ``None`` where all step sizes are the same."""
        if self.common is not None:
            return None
        return [(scalar(group["lr"]) * self.multiplier) ** 0.5 for group in self.groups]

    def betas(self) -> list[float]:
        """β of the momentum by parameter."""
        return [group.get("momentum", 0.0) for group in self.groups]


def any_momentum(groups: Iterable[Group]) -> bool:
    return any(group.get("momentum", 0.0) for group in groups)


def scalar(value: Any) -> Any:
    """A number, or a tensor without dimensions: one of a single element would not broadcast to a scalar parameter."""
    return value.reshape(()) if isinstance(value, Tensor) and value.dim() else value


def _same(a: float | Tensor, b: float | Tensor) -> bool:
    # Tensors are compared by identity: their values would have to be read from the device.
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)
