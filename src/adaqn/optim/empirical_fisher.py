"""The empirical Fisher of a model: curvature from fresh per-example gradients, and no F̃ in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from adaqn.core.curvature import empirical_fisher_product
from adaqn.evaluation.losses import LossFunction
from adaqn.optim.model_curvature import BatchCurvature, Losses


class EmpiricalFisher(BatchCurvature):
    """y = (1/|H|) Σ ∇ℓ_i (∇ℓ_i·s) over the examples of a fresh batch, at the candidate.

    Costs one pass in forward mode and one backward pass per cycle instead of ``fisher_size``
    vectors of memory. The model is evaluated in eval mode, and nothing of it is changed.

    Args:
        model: the unwrapped module whose parameters are optimized.
        per_example_loss: ``(output, target)`` → a 1-D tensor, one loss per example.
        batches: batches ``(*inputs, target)`` or mappings of the training split. One is taken per
            cycle; after the last the first follows. A resumed run takes up at the batch that is due,
            provided that ``batches`` yields them in the same order.
    """

    def __init__(self, model: nn.Module, per_example_loss: LossFunction, batches: Iterable[Any]) -> None:
        super().__init__(model, per_example_loss, batches)

    def along(
        self, losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor], out: Sequence[Tensor] | None
    ) -> Sequence[Tensor]:
        return empirical_fisher_product(losses, w, s, out)
