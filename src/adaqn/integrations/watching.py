"""What the callbacks of all frameworks share: finding the optimizer, and reading what it tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from adaqn.optim.optimizer import QuasiNewton


def metrics(opt: QuasiNewton, prefix: str = "adaqn") -> dict[str, float]:
    """``opt.stats``, and the monitored loss at both points of the last cycle."""
    found = {f"{prefix}/{name}": float(value) for name, value in asdict(opt.stats).items()}
    if opt.last_cycle is not None:
        losses = {"monitored_loss": opt.last_cycle.candidate_loss, "anchor_loss": opt.last_cycle.anchor_loss}
        found |= {f"{prefix}/{name}": value for name, value in losses.items() if value is not None}
    return found


def quasi_newton(optimizers: Iterable[Any]) -> list[QuasiNewton]:
    """adaqn's optimizers among these, out of the wrappers that frameworks put around them."""
    found, seen = [], []
    for optimizer in optimizers:
        while not isinstance(optimizer, QuasiNewton) and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        seen.append(type(optimizer).__name__)
        if isinstance(optimizer, QuasiNewton):
            found.append(optimizer)
    if not found:
        raise TypeError(
            f"none of the optimizers is one of adaqn's (found {', '.join(seen) or 'none'}): MonitorCallback gives "
            "AdaQN and its family their monitor; leave it out for others"
        )
    return found


def missing(package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that says what to install; one about another package is passed on."""
    if error.name is None or error.name.split(".")[0] != package:
        return error
    return ModuleNotFoundError(
        f"adaqn.integrations.{package} needs the package {package}: pip install 'adaqn[{package}]'", name=package
    )
