"""Where y comes from if not from gradients seen before: fresh batches of a model, or the same batch once more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaqn.core.curvature import Curvature, empirical_fisher_product
from adaqn.core.hessian import Losses, hessian_difference, hessian_product
from adaqn.core.products import Reduce, local
from adaqn.evaluation.losses import LossFunction, batch_loss, check_batch
from adaqn.evaluation.random_state import RandomState
from adaqn.evaluation.undisturbed import precision, undisturbed
from adaqn.parameters.flat import FlatParameters, as_complex, as_real


class ModelCurvature(Curvature):
    """A curvature that evaluates a model, and so must know which parameters the vector stands for."""

    def attach(self, flat: FlatParameters) -> None:
        """The optimizer's parameters, in the order of the vector."""
        self.flat = flat

    def check(self, params: Sequence[Tensor]) -> None:
        """Raise if the model does not have these parameters."""


class BatchCurvature(ModelCurvature):
    """The product of a curvature matrix with s on a fresh batch, at the candidate; :meth:`along` is the matrix.

    The model is evaluated in eval mode, and nothing of it is changed.

    Args:
        model: the unwrapped module whose parameters are optimized.
        loss_fn: ``(output, target)`` → loss; what shape it must have, the subclass says.
        batches: batches ``(*inputs, target)`` or mappings of the training split. One is taken per
            cycle; after the last the first follows. A resumed run takes up at the batch that is due,
            provided that ``batches`` yields them in the same order.
    """

    number_names = ("batch",)
    needs_model = True

    def __init__(self, model: nn.Module, loss_fn: LossFunction, batches: Iterable[Any]) -> None:
        if isinstance(batches, Tensor | Mapping) or (
            isinstance(batches, Sequence) and any(isinstance(batch, Tensor) for batch in batches)
        ):
            raise ValueError("batches must be a sequence of batches: wrap a single one as [(inputs, target)]")
        self.model = model
        self.loss_fn = loss_fn
        self.batches = batches
        self.position = 0
        self._iterator: Iterator[Any] | None = None

    def along(
        self, losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor], out: Sequence[Tensor] | None
    ) -> Sequence[Tensor]:
        """The product with s at w, into ``out`` if it is given."""
        raise TypeError(f"{type(self).__name__} has no product with s: override along()")

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
                f"{type(self).__name__}: give it the unwrapped module that is trained"
            )

    @torch.no_grad()
    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        with undisturbed(self.model):  # a shuffling loader draws from the global random state
            batch = self._next_batch()
        w, tangents = self._like_parameters(candidate), self._like_parameters(s)

        def losses(params: Sequence[Tensor]) -> Tensor:
            named = dict(zip(self.names, params, strict=True))
            return batch_loss(
                lambda *args, **kwargs: functional_call(self.model, named, args, kwargs), self.loss_fn, batch
            )

        views = self.flat.views(out)
        in_place = all(view.dtype == p.dtype for view, p in zip(views, w, strict=True))
        with undisturbed(self.model), precision(self.model, None):
            y = self.along(losses, w, tangents, views if in_place else None)
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
        return [(as_complex(v) if p.is_complex() else v).to(p.dtype) for v, p in pieces]

    def _next_batch(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self.batches)
            for _ in itertools.islice(self._iterator, self.position):
                pass
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator, self.position = iter(self.batches), 0
            batch = next(self._iterator, None)
            if batch is None:
                raise ValueError(
                    f"the batches of {type(self).__name__} are used up: give a list, or a loader that can be "
                    "iterated again, not a generator"
                )
        check_batch(batch)
        self.position += 1
        return batch


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


class HessianProduct(BatchCurvature):
    """y = ∇²f_H(w̄)·s on a fresh batch H, at the candidate: the gradient's derivative along s, exactly.

    By double backward; for kernels that have none (cuDNN's recurrent ones) ``finite_difference`` compares the
    gradients at w̄ ± hs instead, with h such that the points lie ``finite_difference``·max(1, ‖w̄‖) away.

    Args:
        model: the unwrapped module whose parameters are optimized.
        loss_fn: ``(output, target)`` → the loss, a scalar or one per example, whose mean is taken.
        batches: batches ``(*inputs, target)`` or mappings of the training split, larger than those of the
            gradients: the authors take 300 to 1,000 examples. One is taken per cycle, in turn.
        finite_difference: for instance 1e-3 in float32; ``None`` differentiates twice.
    """

    signed = True

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, batches: Iterable[Any], *, finite_difference: float | None = None
    ) -> None:
        super().__init__(model, loss_fn, batches)
        if finite_difference is not None and not (math.isfinite(finite_difference) and finite_difference > 0.0):
            raise ValueError(f"finite_difference must be a positive finite number or None, got {finite_difference}")
        self.finite_difference = finite_difference

    def along(
        self, losses: Losses, w: Sequence[Tensor], s: Sequence[Tensor], out: Sequence[Tensor] | None
    ) -> Sequence[Tensor]:
        if self.finite_difference is None:
            y = hessian_product(losses, w, s)
        else:
            y = hessian_difference(losses, w, s, self.finite_difference)
        if out is not None:
            torch._foreach_copy_(list(out), list(y))
        return y


class Rerun:
    """The closure of a step, to be run once more after it, with the same random numbers: dropout's mask stays.

    Made before the closure is run for the first time.
    """

    def __init__(self, closure: Callable[[], Any], devices: Iterable[torch.device]) -> None:
        self.closure, self._random_state = closure, RandomState(devices)

    def __call__(self) -> None:
        with self._random_state.replayed(), torch.enable_grad():
            self.closure()


class GradientDifference(ModelCurvature):
    """y = ∇f_B(w_new) − ∇f_B(w_old): the closure is run a second time, after the step, on the same batch.

    Afterwards ``.grad`` holds the gradient at the new point.
    """

    rows = 1
    needs_closure = True
    rerun: Rerun | None = None
    """Of this step."""

    def __init__(self, *, negated: bool = False) -> None:
        self.negated = negated
        """Are the gradients that it observes those of the negative objective?"""

    def build(self, data: Tensor, reduce: Reduce = local) -> None:
        self.before = data[0]

    def observe(self, g: Tensor) -> None:
        self.before.copy_(g)

    def see(self, g: Tensor, ok: Tensor, scratch: Tensor) -> None:
        self.observe(g)  # every step is a cycle: one without a finite gradient has no use for it

    def product(self, s: Tensor, candidate: Tensor, out: Tensor) -> Tensor:
        assert self.rerun is not None
        try:
            self.rerun()
        finally:
            self.rerun = None  # and the batch that its closure holds
        self.flat.gather_gradients(self.flat.views(out))
        if self.negated:
            out.neg_()
        return out.sub_(self.before)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rerun": None}  # a closure belongs to the step that it was given to
