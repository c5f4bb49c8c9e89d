"""Hugging Face's ``Trainer``: a callback that gives AdaQN its monitor and logs its statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adaqn.integrations.batches import EXAMPLES, on_device, training_batch
from adaqn.integrations.watching import metrics, missing, quasi_newton
from adaqn.optim.monitor import Monitor
from adaqn.optim.optimizer import QuasiNewton

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise missing("transformers", error) from None


def model_loss(output: Any, batch: Any) -> Tensor:
    """The loss that the model itself returns, one number for the batch."""
    loss: Tensor = output.loss
    return loss


def causal_lm_losses(output: Any, batch: Any) -> Tensor:
    """The loss of each sequence of a causal language model, so that the test of a cycle knows its noise."""
    labels = batch["labels"][:, 1:]
    losses = cross_entropy(output.logits[:, :-1].transpose(1, 2).float(), labels, ignore_index=-100, reduction="none")
    per_sequence: Tensor = losses.sum(1) / (labels != -100).sum(1).clamp(min=1)
    return per_sequence


class MonitorCallback(TrainerCallback):
    """Sets ``opt.monitor`` from the training loader when training begins, and logs ``opt.stats`` beside the loss.

    ``trainer.add_callback(MonitorCallback(trainer))``: the trainer is asked for because only it can log. A monitor that
    the optimizer has already is left as it is. Nothing has to be saved: the batch is the same in every run
    (:func:`training_batch`).

    Args:
        trainer: the one this callback is added to.
        loss_fn: called as ``loss_fn(model(**batch), batch)``; the model's own loss, or one loss per example, which is
            better: :func:`causal_lm_losses`, or for classes
            ``lambda output, batch: cross_entropy(output.logits, batch["labels"], reduction="none")``.
        examples: how many training examples are monitored, in each process.
        batch: the batch itself, a mapping, for data that cannot be indexed; it must be the same in a resumed run.
        autocast: the dtype of autocast for the monitor. A trainer with ``bf16=True`` casts in the model itself.
        averaged: leave the average of :meth:`adaqn.AdaQN.eval` in the model when training ends, to be saved; not with
            ``load_best_model_at_end``, which leaves the best one. The trainer evaluates at the average by itself, as it
            does with schedule-free optimizers.
    """

    def __init__(
        self,
        trainer: Any,
        loss_fn: Callable[[Any, Any], Tensor] | None = model_loss,
        *,
        examples: int = EXAMPLES,
        batch: Any = None,
        autocast: torch.dtype | None = None,
        averaged: bool = False,
    ) -> None:
        self.trainer = trainer
        self.loss_fn = loss_fn
        self.examples = examples
        self.batch = batch
        self.autocast = autocast
        self.averaged = averaged
        self._optimizer: QuasiNewton | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **now: Any) -> None:
        """The optimizer is there by now, with the state of a checkpoint if there is one."""
        (opt,) = quasi_newton([now["optimizer"]])
        self._optimizer = opt
        opt.train()  # a run that ended was saved at its average
        if opt.monitor is None:
            batch = training_batch(now["train_dataloader"], self.examples) if self.batch is None else self.batch
            opt.monitor = Monitor(now["model"], self.loss_fn, on_device(batch, args.device), autocast=self.autocast)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **now: Any) -> None:
        """A record of our own after that of the training loss, which the trainer's reporters have seen by now."""
        if self._optimizer is not None and "loss" in (logs or {}):
            self.trainer.log(metrics(self._optimizer))

    def on_train_end(self, args: Any, state: Any, control: Any, **now: Any) -> None:
        if self.averaged and self._optimizer is not None and not args.load_best_model_at_end:
            self._optimizer.eval()
