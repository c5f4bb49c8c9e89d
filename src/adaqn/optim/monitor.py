"""The monitored loss f_M: evaluated at the average of a cycle, it decides whether the cycle is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.core.checks import at_least_one
from adaqn.evaluation.batches import examples_in, joined, part_of
from adaqn.evaluation.losses import EachExample, LossFunction, batch_loss, check_batch, monitored_loss, widened
from adaqn.evaluation.trial import first_length, first_loss, is_ready
from adaqn.evaluation.undisturbed import precision, undisturbed, without_ddp
from adaqn.optim.events import warn


class Monitor:
    """The loss of a model on a fixed batch, as a callable without arguments.

    The batch must come from the training split: accepting steps by validation or test data would
    make every comparison dishonest. A hundred examples or so are enough.

    To change the batch, assign a new monitor to ``opt.monitor``: it keeps the loss at the anchor until then. To change
    it once per cycle there is :class:`RotatingMonitor`.

    The first evaluation comes when the monitor is made, so that mistakes show there; where the model is not ready for
    it (on another device than the batch, yet to be made, in several processes), it comes in the first step, before
    anything has changed.

    Evaluation has no side effects: no gradients, eval mode (each module's own mode comes back
    afterwards), torch's random state and the model's buffers untouched, and autocast as given here
    rather than as the caller happens to have it. The result is float32 or wider.

    Args:
        model: called as ``model(*inputs)``, or ``model(**batch)`` if the batch is a mapping.
        loss_fn: called as ``loss_fn(output, target)``, or ``loss_fn(output, batch)`` for a mapping.
            Returns a scalar, or a 1-D tensor of per-example losses, whose mean decides. Of losses with more dimensions
            each example's mean is taken. torch's losses are asked for one loss per example (``reduction="none"``) where
            their mean is the same. ``None`` is for a model that returns its own loss: it is called as ``model(*batch)``
            or ``model(**batch)``, targets included, and the loss is what it returns, the ``loss`` of that, or the one
            scalar of a tuple.
        batch: ``(*inputs, target)`` or a mapping.
        autocast: the dtype of autocast, or ``None`` to evaluate in the parameters' own.
        chunk: examples at a time, where all of them do not fit in memory.
        batch_dim: the dimension of the tensors in the batch that counts examples, for ``chunk``.

    >>> model = nn.Linear(3, 1)
    >>> monitor = Monitor(model, nn.MSELoss(), (torch.randn(8, 3), torch.randn(8, 1)))
    >>> monitor().shape
    torch.Size([8])
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction | None,
        batch: Sequence[Any] | Mapping[str, Any],
        *,
        autocast: torch.dtype | None = None,
        chunk: int | None = None,
        batch_dim: int = 0,
    ) -> None:
        check_batch(batch, whole=loss_fn is None)
        self._tried_on: torch.device | None = None
        self.is_scalar = False
        """Did it return one number for the whole batch?"""
        self.model = model
        self.loss_fn = loss_fn
        self.batch = batch
        self.autocast = autocast
        self.chunk = None if chunk is None else at_least_one("chunk", chunk)
        self.batch_dim = batch_dim
        if is_ready(model, batch):
            self._evaluate()

    def __call__(self) -> Tensor:
        return self._evaluate()

    def _evaluate(self) -> Tensor:
        with torch.no_grad(), undisturbed(self.model), self._precision():
            losses = monitored_loss(self._losses)
        self._tried_on, self.is_scalar = self._device, losses.dim() == 0
        return losses

    def differentiate(self, backward: Callable[[Tensor], None], examples: int | None = None) -> Tensor:
        """The same, and ``backward`` of the mean over the first ``examples``, or over all.

        It is called once for each chunk; what it is called with adds up to that mean.
        """
        model, found = without_ddp(self.model), []
        with undisturbed(model, backward=True), self._precision():
            for part, size, share in self._parts(examples):
                with torch.set_grad_enabled(share > 0.0):
                    losses = self._loss_on(part, model)
                    if share > 0.0:
                        backward(widened(losses).mean() * share)
                found.append((losses.detach(), size))
        return joined(found)

    def _losses(self) -> Tensor:
        return joined([(self._loss_on(part, self.model), size) for part, size, _ in self._parts(None)])

    def _loss_on(self, part: Any, model: nn.Module) -> Any:
        evaluate = batch_loss if self.is_tried else first_loss
        return self._per_example(evaluate(model, self._each, part), part)

    def _parts(self, examples: int | None) -> Iterator[tuple[Any, int, float]]:
        """The batch in chunks: (a part, its examples, its share of the mean over the first ``examples``)."""
        if self.chunk is None and examples is None:
            yield self.batch, 1, 1.0
            return
        count = examples_in(self.batch, self.batch_dim)
        first = count if examples is None else min(examples, count)
        for start, end in ((0, first), (first, count)):
            for at in range(start, end, self.chunk or count):
                stop = min(at + (self.chunk or count), end)
                share = (stop - at) / first if start == 0 else 0.0
                yield part_of(self.batch, slice(at, stop), self.batch_dim), stop - at, share

    @property
    def loss_fn(self) -> LossFunction | None:
        """As it was given."""
        return None if self._each is None else self._each.loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: LossFunction | None) -> None:
        self._each = None if loss_fn is None else EachExample(loss_fn)
        self._tried_on = None

    @property
    def is_tried(self) -> bool:
        """Has it been evaluated, with the model where it is now?"""
        return self._tried_on == self._device

    @property
    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _per_example(self, losses: Any, part: Any) -> Any:
        """One loss per example where there are more dimensions; the mean of all where these are not of examples."""
        if not isinstance(losses, Tensor) or losses.dim() < 2 or losses.numel() == 0:
            return losses
        losses, count = widened(losses), first_length(part, self.batch_dim)
        if len(losses) == count:
            return losses.flatten(1).mean(1)
        if not self.is_tried:
            warn(
                f"loss_fn returned losses of shape {tuple(losses.shape)} for a batch of {count} examples: the monitor "
                "takes the mean of all, and loses what single examples tell about its noise. Return one loss per "
                "example, in the first dimension"
            )
        return losses.mean()

    def _precision(self) -> torch.autocast:
        return precision(self.model, self.autocast)


class RotatingMonitor(Monitor):
    """A :class:`Monitor` that moves on to the next of its batches once per cycle.

    A fixed set is fitted like any training data, and the anchor is what did well on it; a set that rotates forgets
    that. Both points are evaluated on the same set, the anchor anew each time: two forward passes per cycle instead
    of one (D7, D8). Which set is due is saved in the optimizer's state, and a resumed run takes up there.

    Args:
        model: as for :class:`Monitor`.
        loss_fn: as for :class:`Monitor`; one loss per example lets ``reject="paired"`` know the noise.
        batches: a list of batches ``(*inputs, target)`` or mappings of the training split, all at hand: a loader's
            are ``list(itertools.islice(loader, 10))``.
        autocast: as for :class:`Monitor`, and so are ``chunk`` and ``batch_dim``.

    >>> data = [(torch.full((4, 1), float(i)), torch.zeros(4)) for i in range(3)]
    >>> monitor = RotatingMonitor(nn.Identity(), lambda output, target: output[:, 0], data)
    >>> [float(monitor().mean()) for _ in range(4) if monitor.advance() is None]
    [1.0, 2.0, 0.0, 1.0]
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction | None,
        batches: Sequence[Any],
        *,
        autocast: torch.dtype | None = None,
        chunk: int | None = None,
        batch_dim: int = 0,
    ) -> None:
        if not isinstance(batches, Sequence) or any(isinstance(batch, Tensor) for batch in batches):
            raise ValueError(
                f"batches must be a list of batches, got {type(batches).__name__}: wrap a single one as "
                "[(inputs, target)], and take some of a loader's with list(itertools.islice(loader, 10))"
            )
        if not batches:
            raise ValueError("batches is empty: a monitor needs at least one batch")
        for batch in batches:
            check_batch(batch, whole=loss_fn is None)
        super().__init__(model, loss_fn, batches[0], autocast=autocast, chunk=chunk, batch_dim=batch_dim)
        self.batches = batches
        self.position = 0

    @property
    def position(self) -> int:
        """How often it has moved on; assigning it chooses the batch."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._position = position
        self.batch = self.batches[position % len(self.batches)]

    def advance(self) -> None:
        """The next batch, after the last the first."""
        self.position += 1
