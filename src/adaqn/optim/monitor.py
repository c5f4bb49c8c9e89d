"""The monitored loss f_M: evaluated at the average of a cycle, it decides whether the cycle is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.evaluation.losses import EachExample, LossFunction, batch_loss, check_batch, monitored_loss
from adaqn.evaluation.undisturbed import precision, undisturbed


class Monitor:
    """The loss of a model on a fixed batch, as a callable without arguments.

    The batch must come from the training split: accepting steps by validation or test data would
    make every comparison dishonest. A hundred examples or so are enough.

    To change the batch, assign a new monitor to ``opt.monitor``: it keeps the loss at the anchor until then. To change
    it once per cycle there is :class:`RotatingMonitor`.

    Evaluation has no side effects: no gradients, eval mode (each module's own mode comes back
    afterwards), torch's random state and the model's buffers untouched, and autocast as given here
    rather than as the caller happens to have it. The result is float32 or wider.

    Args:
        model: called as ``model(*inputs)``, or ``model(**batch)`` if the batch is a mapping.
        loss_fn: called as ``loss_fn(output, target)``, or ``loss_fn(output, batch)`` for a mapping.
            Returns a scalar, or a 1-D tensor of per-example losses, whose mean decides. torch's losses are asked for
            one loss per example (``reduction="none"``) where their mean is the same.
        batch: ``(*inputs, target)`` or a mapping.
        autocast: the dtype of autocast, or ``None`` to evaluate in the parameters' own.

    >>> model = nn.Linear(3, 1)
    >>> monitor = Monitor(model, nn.MSELoss(), (torch.randn(8, 3), torch.randn(8, 1)))
    >>> monitor().shape
    torch.Size([8])
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        batch: Sequence[Any] | Mapping[str, Any],
        *,
        autocast: torch.dtype | None = None,
    ) -> None:
        check_batch(batch)
        self.model = model
        self.loss_fn = loss_fn
        self.batch = batch
        self.autocast = autocast

    def __call__(self) -> Tensor:
        with torch.no_grad(), undisturbed(self.model), self._precision():
            return monitored_loss(lambda: batch_loss(self.model, self._each, self.batch))

    @property
    def loss_fn(self) -> LossFunction:
        """As it was given."""
        return self._each.loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: LossFunction) -> None:
        self._each = EachExample(loss_fn)

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
        autocast: as for :class:`Monitor`.

    >>> data = [(torch.full((4, 1), float(i)), torch.zeros(4)) for i in range(3)]
    >>> monitor = RotatingMonitor(nn.Identity(), lambda output, target: output[:, 0], data)
    >>> [float(monitor().mean()) for _ in range(4) if monitor.advance() is None]
    [1.0, 2.0, 0.0, 1.0]
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, batches: Sequence[Any], *, autocast: torch.dtype | None = None
    ) -> None:
        if not isinstance(batches, Sequence) or any(isinstance(batch, Tensor) for batch in batches):
            raise ValueError(
                f"batches must be a list of batches, got {type(batches).__name__}: wrap a single one as "
                "[(inputs, target)], and take some of a loader's with list(itertools.islice(loader, 10))"
            )
        if not batches:
            raise ValueError("batches is empty: a monitor needs at least one batch")
        for batch in batches:
            check_batch(batch)
        super().__init__(model, loss_fn, batches[0], autocast=autocast)
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
