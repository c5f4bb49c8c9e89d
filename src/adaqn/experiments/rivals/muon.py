"""Muon, with the products of its iteration in a type that the device computes in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

ADAMW_SHARE = 3e-4 / 2e-2
"""Muon's AdamW step in steps of its own: the ratio of its defaults."""


def muon(named: Any, **options: Any) -> Optimizer:
    """Muon for the matrices inside; embedding, output and vectors go to its AdamW, as its authors do."""
    inner: list[Any] = []
    outer: list[Any] = []
    for name, p in named:
        is_inner = p.dim() >= 2 and not name.startswith(("embedding.", "output."))
        (inner if is_inner else outer).append(p)
    groups = [{"params": inner, "use_muon": True}, {"params": outer, "use_muon": False}]
    options.setdefault("adamw_lr", ADAMW_SHARE * options["lr"])  # a tuned step size must reach all parameters
    options.setdefault("adamw_wd", options.get("weight_decay", 0.0))
    return _kind()([group for group in groups if group["params"]], **options)


def _kind() -> type[Optimizer]:
    """The class of pytorch_optimizer, which is imported when it is asked for."""
    from pytorch_optimizer import Muon
    from pytorch_optimizer.optimizer.utils import zero_power_via_newton_schulz_5

    class InFloat32(Muon):
        """Its products are in bfloat16, which a processor without such instructions makes fourteen times slower."""

        @staticmethod
        def _orthogonalize(group: dict[str, Any], updates: list[Tensor]) -> list[Tensor]:
            if any(update.device.type != "cpu" for update in updates):
                return Muon._orthogonalize(group, updates)
            return [
                zero_power_via_newton_schulz_5(
                    update.reshape(len(update), -1), group["ns_steps"], weights=group["ns_coeffs"], dtype=torch.float32
                )
                for update in updates
            ]

    return InFloat32
