"""Lightning: a callback that gives AdaQN its monitor and logs its statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adaqn.integrations.batches import EXAMPLES, training_batch
from adaqn.integrations.watching import metrics, missing, quasi_newton
from adaqn.optim.monitor import Monitor
from adaqn.optim.optimizer import QuasiNewton

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing("lightning", error) from None


class MonitorCallback(Callback):
    """Sets ``opt.monitor`` from the training loader when training starts, and logs ``opt.stats``.

    The optimizer is the one that ``configure_optimizers`` returns, under automatic optimization. A monitor that it has
    already is left as it is. Nothing has to be saved: the batch is the same in every run (:func:`training_batch`).

    Args:
        loss_fn: called as ``loss_fn(module(*inputs), target)``, or ``loss_fn(module(**batch), batch)`` where batches
            are mappings; one loss per example is best. See :class:`adaqn.Monitor`, whose ``loss_fn`` this is. For other
            batches override :meth:`make_monitor`.
        examples: how many training examples are monitored, in each process.
        batch: the batch itself, for data that cannot be indexed; it must be the same in a resumed run.
        autocast: the dtype of autocast for the monitor; ``None`` evaluates in the parameters' own.
        log: log ``adaqn/stored`` and the others through the trainer's loggers, as often as it logs.
        averaged: validate at the average of :meth:`adaqn.AdaQN.eval`, and keep it in the module until the next batch,
            so that a checkpoint of the best validation holds what was validated; and when training ends, to be tested
            and exported. Such a checkpoint resumes training like any other.
    """

    def __init__(
        self,
        loss_fn: Callable[..., torch.Tensor] | None,
        *,
        examples: int = EXAMPLES,
        batch: Any = None,
        autocast: torch.dtype | None = None,
        log: bool = True,
        averaged: bool = False,
    ) -> None:
        self.loss_fn = loss_fn
        self.examples = examples
        self.batch = batch
        self.autocast = autocast
        self.logs = log
        self.averaged = averaged
        self._optimizers: list[QuasiNewton] = []

    def make_monitor(self, module: LightningModule, batch: Any) -> Callable[[], Any]:
        """The monitor of a batch, which is on the module's device."""
        return Monitor(module, self.loss_fn, batch, autocast=self.autocast)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._optimizers = quasi_newton(trainer.optimizers)
        for opt in self._optimizers:
            opt.train()  # a run that ended was saved at its average
        unmonitored = [opt for opt in self._optimizers if opt.monitor is None]
        if unmonitored:
            batch = self._transferred(trainer, pl_module)
            for opt in unmonitored:
                opt.monitor = self.make_monitor(pl_module, batch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for opt in self._optimizers if self.averaged else ():
            opt.eval()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        for opt in self._optimizers if self.averaged else ():
            opt.train()  # not before: whoever saves after a validation saves what was validated

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for opt in self._optimizers if self.averaged else ():
            opt.eval()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not self.logs:
            return
        for index, opt in enumerate(self._optimizers):
            self.log_dict(metrics(opt, "adaqn" if len(self._optimizers) == 1 else f"adaqn_{index}"))

    def _transferred(self, trainer: Trainer, module: LightningModule) -> Any:
        """The batch as ``training_step`` would get it."""
        batch = training_batch(trainer.train_dataloader, self.examples) if self.batch is None else self.batch
        batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(batch), dataloader_idx=0)
        return trainer.strategy.batch_to_device(batch, dataloader_idx=0)
