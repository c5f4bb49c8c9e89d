"""The monitored loss f_M: evaluated at the average of a cycle, it decides whether the cycle is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.core.checks import at_least_one
from adaqn.evaluation.batches import examples_first, examples_in, has_dim, joined, part_of, tensors_in
from adaqn.evaluation.losses import EachExample, LossFunction, batch_loss, check_batch, monitored_loss, widened
from adaqn.evaluation.trial import first_length, first_loss, is_ready
from adaqn.evaluation.undisturbed import precision, undisturbed, without_ddp
from adaqn.optim.events import warn

SAME_LOSSES = 1e-2
"""By how much of their size losses may differ with what else is evaluated: bfloat16 rounds to a few parts in 1,000."""


class Monitor:
    """The loss of a model on a fixed batch, as a callable without arguments.

    The batch must come from the training split, because the monitor decides which steps are kept. Validation or test
    data would bias every comparison. About a hundred examples are enough.

    To change the batch, assign a new monitor to ``opt.monitor``: the loss at the anchor is cached until then. To change
    it once per cycle use :class:`RotatingMonitor`.

    The monitor is evaluated once when it is constructed, so mistakes show up early. If the model is not ready (on a
    different device than the batch, lazy weights, several processes), this happens in the first step, before anything
    has changed. A loss that is nan before the first step, at finite weights, is an error there.

    Evaluation has no side effects: no gradients, eval mode (each module's mode is restored), and torch's random state
    and the model's buffers unchanged. Autocast is as given here, whatever the caller uses. The result is float32 or
    wider.

    Args:
        model: called as ``model(*inputs)``, or ``model(**batch)`` if the batch is a mapping.
        loss_fn: called as ``loss_fn(output, target)``, or ``loss_fn(output, batch)`` for a mapping.
            Returns a scalar, or a 1-D tensor of per-example losses, whose mean decides. Losses with more dimensions are
            averaged per example. torch's losses are called with ``reduction="none"`` if their mean is the same.
            ``None`` is for a model that returns its own loss: it is called as ``model(*batch)`` or ``model(**batch)``,
            targets included, and the loss is its output, the output's ``loss``, or the only scalar in a tuple.
        batch: ``(*inputs, target)`` or a mapping.
        autocast: the dtype of autocast, or ``None`` to evaluate in the parameters' dtype.
        chunk: number of examples at a time, if all of them do not fit in memory.
        batch_dim: the dimension of the examples in the tensors of the batch, and in losses of several dimensions.

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
        _check_arguments(batch, autocast, batch_dim)
        self._tried_on: torch.device | None = None
        self._compared: dict[tuple[int, int, int], Any] = {}
        """Batches, by their identity, and parts of them that have been seen: there the losses of examples are known to
        have the mean of ``loss_fn``."""
        self.is_scalar = False
        """Did it return one number for the whole batch?"""
        self.was_nan = False
        """Was its loss nan when it was first evaluated?"""
        self.model = model
        self.batch_dim = batch_dim
        self.loss_fn = loss_fn
        self.batch = batch
        self.autocast = autocast
        self.chunk = None if chunk is None else at_least_one("chunk", chunk)
        if is_ready(model, batch):
            self._evaluate()

    def __call__(self) -> Tensor:
        return self._evaluate()

    def losses_of(self, examples: slice) -> Tensor:
        """The losses of these examples of the batch alone."""
        return self._evaluate(examples)

    def _evaluate(self, examples: slice | None = None) -> Tensor:
        with torch.no_grad(), undisturbed(self.model), self._precision():
            losses = monitored_loss(lambda: self._losses(examples))
        if not self.is_tried:
            self.was_nan = bool(losses.mean().isnan())
            if examples is None and losses.dim() == 1:
                self._compare_with_examples(len(losses))
        self._tried_on, self.is_scalar = self._device, losses.dim() == 0
        return losses

    @property
    def count(self) -> int:
        """The examples of the batch; 0 where its tensors do not agree on that, so that it cannot be cut."""
        try:
            return examples_in(self.batch, self.batch_dim)
        except ValueError:
            return 0

    def can_be_cut(self, first: int) -> bool:
        """Have the first examples alone the losses that they have beside the others?

        Not so for a model or loss that compares examples with each other, or is made for one number of them.
        """
        if type(self).__call__ is not Monitor.__call__:
            return False  # somebody else's: what it does is not known
        whole = self()
        if whole.dim() != 1:
            return False
        try:
            part = self.losses_of(slice(0, first))
        except Exception:
            return False
        if part.dim() != 1 or len(part) * self.count != len(whole) * first:
            return False
        beside = whole[: len(part)]
        agree = (part - beside).abs().mean() <= SAME_LOSSES * beside.abs().mean()
        return bool(agree) or torch.equal(part, beside) or not bool(beside.isfinite().all())

    def differentiate(
        self, backward: Callable[[Tensor], None], examples: int | None = None, within: slice | None = None
    ) -> Tensor:
        """The same, and ``backward`` of the mean over the first ``examples``, or over all; ``within`` a first part.

        It is called once for each chunk; what it is called with adds up to that mean.
        """
        if not self._was_compared(within):
            self._evaluate(within)  # once for each batch: what is found out there would come too late here
        model, found = without_ddp(self.model), []
        with undisturbed(model, backward=True), self._precision():
            for part, size, share in self._parts(examples, within):
                with torch.set_grad_enabled(share > 0.0):
                    losses = self._loss_on(part, model)
                    if share > 0.0:
                        backward(widened(losses).mean() * share)
                found.append((losses.detach(), size))
        return joined(found)

    def _losses(self, examples: slice | None) -> Tensor:
        each = self._each
        apart = None if each is None else each.apart
        if each is not None:
            each.is_checked = self._was_compared(examples)
        found = self._in_parts(examples)
        if each is not None and each.apart is not apart:  # a later chunk told that these are not losses of examples
            found = self._in_parts(examples)
            if self.chunk is not None:
                warn(
                    "the mean that loss_fn returns is not that of its losses of examples, as with class weights or "
                    "targets to be ignored: the monitor averages the means of chunks, each by its examples. Return "
                    "one loss per example from a loss_fn of your own"
                )
        self._compared[self._key(examples)] = self.batch
        return found

    def _key(self, examples: slice | None) -> tuple[int, int, int]:
        part = (-1, -1) if examples is None else (examples.start, examples.stop)
        return id(self.batch), *part

    def _was_compared(self, examples: slice | None) -> bool:
        if self._each is None or self._each.apart is None:
            return True  # there are no losses of examples to be compared
        return self._key(None) in self._compared or self._key(examples) in self._compared

    def _in_parts(self, examples: slice | None) -> Tensor:
        return joined([(self._loss_on(part, self.model), size) for part, size, _ in self._parts(None, examples)])

    def _loss_on(self, part: Any, model: nn.Module) -> Any:
        evaluate = batch_loss if self.is_tried else first_loss
        return self._per_example(evaluate(model, self._each, part), part)

    def _parts(self, examples: int | None, within: slice | None) -> Iterator[tuple[Any, int, float]]:
        """The batch in chunks: (a part, its examples, its share of the mean over the first ``examples``)."""
        if self.chunk is None and examples is None and within is None:
            yield self.batch, 1, 1.0
            return
        count = examples_in(self.batch, self.batch_dim)
        begin, close, _ = (within or slice(None)).indices(count)
        first = close if examples is None else min(examples, close)
        for start, end in ((begin, first), (max(begin, first), close)):
            for at in range(start, end, self.chunk or count):
                stop = min(at + (self.chunk or count), end)
                share = (stop - at) / first if at < first else 0.0
                yield part_of(self.batch, slice(at, stop), self.batch_dim), stop - at, share

    @property
    def loss_fn(self) -> LossFunction | None:
        """As it was given."""
        return None if self._each is None else self._each.loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: LossFunction | None) -> None:
        self._each = None if loss_fn is None else EachExample(loss_fn, self.batch_dim)
        self._tried_on, self._compared = None, {}

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
        by_example = examples_first(losses, self.batch_dim)
        if len(by_example) == count:
            return by_example.flatten(1).mean(1)
        if not self.is_tried:
            warn(
                f"loss_fn returned losses of shape {tuple(losses.shape)} for a batch of {count} examples: the monitor "
                "uses only their mean, and cannot estimate its noise. Return one loss per example, in the dimension "
                "of the examples (batch_dim)"
            )
        return losses.mean()

    def _compare_with_examples(self, losses: int) -> None:
        """Warn if there are far fewer or more losses than examples, as far as these can be counted.

        Up to half or double, as of windows or pairs of examples, the estimate of the noise is hardly worse.
        """
        count = self.count
        if count <= 1 or count <= 2 * losses <= 4 * count:  # a length of 1 seldom counts examples
            return
        if losses > count:
            noise = "losses of one example are alike, so the noise comes out too small and good cycles are rejected"
        else:
            noise = "so few say little about the noise, and bad cycles may be kept"
        such_as = f", such as losses.view({count}, -1).mean(1)" if losses % count == 0 else ""
        warn(
            f"the monitor has {losses} losses for a batch of {count} examples. The rejection test takes each for the "
            f"loss of one example: {noise}. Return one loss per example from loss_fn, shape ({count},){such_as}; if "
            "the examples lie along another dimension of the batch, give batch_dim"
        )

    def _precision(self) -> torch.autocast:
        return precision(self.model, self.autocast)


def _check_arguments(batch: Any, autocast: torch.dtype | None, batch_dim: int) -> None:
    if autocast is not None and not (isinstance(autocast, torch.dtype) and autocast.is_floating_point):
        raise ValueError(f"autocast must be a floating dtype such as torch.bfloat16, or None, got {autocast!r}")
    tensors = list(tensors_in(batch))
    if tensors and not any(has_dim(tensor, batch_dim) for tensor in tensors):
        most = max(tensor.dim() for tensor in tensors)
        raise ValueError(
            f"batch_dim={batch_dim}, and the tensors of the batch have at most {most} dimensions: it says which one "
            "counts examples"
        )


class RotatingMonitor(Monitor):
    """A :class:`Monitor` that moves to the next of its batches once per cycle.

    A fixed batch can be overfitted; rotating batches avoid this. Both points of a cycle are evaluated on the same
    batch: two forward passes per cycle instead of one (D7, D8). The position is saved in the optimizer's state.

    Args:
        model: as for :class:`Monitor`.
        loss_fn: as for :class:`Monitor`; one loss per example lets ``reject="paired"`` estimate the noise.
        batches: a list of batches ``(*inputs, target)`` or mappings from the training split. To take some from a
            loader: ``list(itertools.islice(loader, 10))``.
        autocast: as for :class:`Monitor`, like ``chunk`` and ``batch_dim``.

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
