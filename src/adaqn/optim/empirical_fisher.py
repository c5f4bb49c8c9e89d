"""The empirical Fisher of a model: curvature from fresh per-example gradients, and no F̃ in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaqn.core.curvature import Curvature, empirical_fisher_product
from adaqn.optim.flat import FlatParameters, as_real
from adaqn.optim.monitor import LossFunction, batch_loss, check_batch, precision, undisturbed


class ModelCurvature(Curvature):
    """A curvature that evaluates a model, and so must know which parameters the vector stands for."""

    def attach(self, flat: FlatParameters) -> None:
        """The optimizer's parameters, in the order of the vector."""
        self.flat = flat

    def check(self, params: Sequence[Tensor]) -> None:
        """Raise if the model does not have these parameters."""


class EmpiricalFisher(ModelCurvature):
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

    number_names = ("batch",)

    def __init__(self, model: nn.Module, per_example_loss: LossFunction, batches: Iterable[Any]) -> None:
        if isinstance(batches, Tensor | Mapping) or (
            isinstance(batches, Sequence) and any(isinstance(batch, Tensor) for batch in batches)
        ):
            raise ValueError("batches must be a sequence of batches: wrap a single one as [(inputs, target)]")
        self.model = model
        self.per_example_loss = per_example_loss
        self.batches = batches
        self.position = 0
        self._iterator: Iterator[Any] | None = None

    def attach(self, flat: FlatParameters) -> None:
        super().attach(flat)
        self.check(flat.params)
        names = {id(p): name for name, p in self.model.named_parameters()}
        self.names = [names[id(p)] for p in flat.params]

    def check(self, params: Sequence[Tensor]) -> None:
        known = {id(p) for p in self.model.parameters()}
        strangers = [i for i, p in enumerate(params) if id(p) not in known]
        if strangers:
            raise ValueError(
                f"parameter {strangers[0]} of the optimizer is not one of the model given to "
                "EmpiricalFisher: give it the unwrapped module that is trained"
            )

    @torch.no_grad()
    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        with undisturbed(self.model):  # a shuffling loader draws from the global random state
            batch = self._next_batch()
        w, tangents = self._like_parameters(candidate), self._like_parameters(s)

        def losses(params: Sequence[Tensor]) -> Tensor:
            named = dict(zip(self.names, params, strict=True))
            return batch_loss(
                lambda *args, **kwargs: functional_call(self.model, named, args, kwargs),
                self.per_example_loss,
                batch,
            )

        views = self.flat.views(out)
        in_place = all(view.dtype == p.dtype for view, p in zip(views, w, strict=True))
        with undisturbed(self.model), precision(self.model, None):
            y = empirical_fisher_product(losses, w, tangents, views if in_place else None)
        if not in_place:
            torch._foreach_copy_(views, [as_real(tensor) for tensor in y])
        return out

    def numbers(self) -> dict[str, float]:
        return {"batch": self.position}

    def load_numbers(self, numbers: dict[str, float]) -> None:
        self._iterator, self.position = None, int(numbers["batch"])

    def __getstate__(self) -> dict[str, Any]:
        # A half-used iterator cannot be copied; the position finds its place again.
        return {**self.__dict__, "_iterator": None}

    def _like_parameters(self, vector: Tensor) -> list[Tensor]:
        pieces = zip(self.flat.views(vector), self.flat.params, strict=True)
        return [(torch.view_as_complex(v) if p.is_complex() else v).to(p.dtype) for v, p in pieces]

    def _next_batch(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self.batches)
            for _ in range(self.position):
                next(self._iterator, None)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator, self.position = iter(self.batches), 0
            batch = next(self._iterator, None)
            if batch is None:
                raise ValueError(
                    "the batches of EmpiricalFisher are used up: give a list or a loader that starts "
                    "anew each time, not a generator"
                )
        check_batch(batch)
        self.position += 1
        return batch
