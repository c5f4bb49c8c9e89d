"""What a step really costs, in gradients: batches that go through the model while an optimizer is at work."""

from __future__ import annotations

from typing import Any

from torch import nn


class Passes:
    """Counts them within ``with``: gradients, monitored losses and trial points alike, examples by examples."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        self.batch_size, self.examples, self._counts = batch_size, 0, False
        model.register_forward_pre_hook(self._seen)

    def _seen(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._counts:
            self.examples += len(args[0])

    def __enter__(self) -> None:
        self._counts = True

    def __exit__(self, *_: object) -> None:
        self._counts = False

    def with_products(self, stats: dict[str, Any]) -> float:
        """In batches. A product of Hessian-Free with its curvature is one more, as where evaluations are counted."""
        products: int = stats.get("cg_iterations", 0)
        return round(self.examples / self.batch_size + products, 3)
