"""A run on the whole batch, counted in evaluations of loss and gradient: every optimizer gets exactly as many."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaqn.experiments.errors import UserError
from adaqn.experiments.means import mean
from adaqn.experiments.optimizers import entry
from adaqn.experiments.problems.whole import WholeBatch
from adaqn.experiments.training import saving
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.evaluator import Evaluator, SpentError
from adaqn.experiments.training.run import Listener, Progress, Run
from adaqn.experiments.training.team import ALONE, Team
from adaqn.fullbatch.optimizer import WholeGradient

MEASUREMENTS = 100
"""In the whole run, times ``evaluations``."""
RESAMPLED_MEASUREMENTS = 25
"""The same where each costs an evaluation of four times as many points."""
NOISE_SAMPLES = 20
"""Of which the noise at the end of a resampled run is measured."""
SPENT = "the evaluations of the run (--steps) are spent"
AT_THE_END = ("reason", "iterations", "restarts", "nonfinite")
"""What the result says of an optimizer that can explain itself."""
UNSEEN = 2**31 + 1
"""The number of the first of them."""


class WholeRun(Run):
    """``step`` is the number of evaluations so far. What is measured is the lowest loss among them, at exactly every
    so many evaluations, also in the middle of a line search; the error is that of its weights, and they are the model's
    at the end. Seconds are those of the optimizer and of its evaluations, without measurements.

    With ``resample`` losses of different samples do not compare. The weights that are measured are then those of the
    lowest loss on the sample at work, and what is told of them is their loss on points that are the same for all.
    """

    task: WholeBatch
    counts_evaluations = True

    def __init__(
        self, config: RunConfig, folder: Path | None = None, data_dir: Path | None = None, team: Team = ALONE
    ) -> None:
        super().__init__(config, folder, data_dir, team)
        self.blocking = entry(self.config.optimizer).blocking
        measurements = MEASUREMENTS if not self.config.resample else RESAMPLED_MEASUREMENTS
        self.every = max(1, self.total // (measurements * self.config.evaluations))
        self.batch = self.task.batch(0)
        self.sample = 0
        self.twin = self.task.model()
        self.evaluator = Evaluator(self.model, self.forward, self.optimizer.zero_grad, self.total, self._counted)
        self.stopped_at: int | None = None
        self._inside = False
        self._listener: Listener | None = None
        self._interrupted: threading.Event | None = None
        self._since = 0.0

    def forward(self) -> tuple[Tensor, Tensor]:
        self._take_sample()
        x, target = self.batch
        output = self.model(x, None)
        loss = self.task.losses(output, target).mean()
        penalty = self.task.penalty(self.model)
        return (loss if penalty is None else loss + penalty), output[0]

    # ------------------------------------------------------------------ training

    def _train(self, listener: Listener | None, interrupted: threading.Event, checkpoint_every: float) -> None:
        self._listener, self._interrupted = listener, interrupted
        super()._train(listener, interrupted, checkpoint_every)
        self.evaluator.restore_lowest(self.model)

    def _advance(self, stops: bool) -> bool:
        before = self.evaluator.count
        self._take_sample()
        self.set_step_size()
        with self._timed():
            try:
                self._take_step()
            except SpentError:
                self._say_spent()
        if self.evaluator.count == before:
            self._stop()
        return stops

    def _take_step(self) -> None:
        if self.kind == "plain":
            self.evaluator.closure()
            self.optimizer.step()
        elif self.kind == "closure":
            self.evaluator.begin()
            self._end_with_sample()
            self.optimizer.step(self.evaluator.closure)  # type: ignore[arg-type]
        else:
            products = self._products()
            self.optimizer.step(self.evaluator.graph)  # type: ignore[arg-type]
            self.evaluator.charge(self._products() - products)

    def _say_spent(self) -> None:
        """The optimizer only knows that there was an error."""
        if isinstance(self.optimizer, WholeGradient):
            self.optimizer._reason = SPENT

    def _end_with_sample(self) -> None:
        """Our own methods: a step ends where its sample does, so that the next one begins with the new one."""
        if not self.config.resample or not isinstance(self.optimizer, WholeGradient):
            return
        left = self.config.resample - self.evaluator.count % self.config.resample
        usual = self.optimizer.defaults["max_eval"]
        for group in self.optimizer.param_groups:
            group["max_eval"] = min(usual, left + int(self.evaluator.is_known()))

    def _take_sample(self) -> None:
        """The sample that is due, before the evaluation that needs it; optimizers that want to know of it are told."""
        number = self.evaluator.count // self.config.resample if self.config.resample else 0
        if number == self.sample:
            return
        self.sample, self.batch = number, self.task.sample(number)
        self.evaluator.forget()
        if isinstance(self.optimizer, WholeGradient):
            self.optimizer.resampled()

    def _products(self) -> int:
        return int(getattr(getattr(self.optimizer, "stats", None), "cg_iterations", 0))

    def _stop(self) -> None:
        """It asks for no further evaluation: the rest of the budget would change nothing."""
        self.stopped_at = self.evaluator.count
        self.evaluator.count = self.total
        self._counted()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._inside, self._since = True, time.perf_counter()
        yield  # an exception leaves it inside: what is half done cannot be saved
        self.seconds += time.perf_counter() - self._since
        self._inside = False

    def _counted(self) -> None:
        """After every evaluation: measure what is due, and tell of a call that will not return before the end."""
        if self._inside:
            self.seconds += time.perf_counter() - self._since
        before, reached = self.step, self.evaluator.count
        due = [*range(before - before % self.every + self.every, reached + 1, self.every)]
        if before < reached == self.total and self.total % self.every:
            due.append(self.total)
        for step in due:
            self.step = step
            self.measure()
        self.step = reached
        if self.blocking and self._inside:
            if self._listener is not None and self.step < self.total:
                self._listener(Progress(self.step, self.total, self.evaluator.lowest))
            if self._interrupted is not None and self._interrupted.is_set():
                raise KeyboardInterrupt
        self._since = time.perf_counter()

    def is_due(self) -> bool:
        return False  # measured in the middle of a step

    def told_loss(self) -> float | None:
        return self.evaluator.last if self.config.resample else self.evaluator.lowest

    # ------------------------------------------------------------------ measuring

    def measure(self) -> None:
        if not self.evaluator.weights:  # nothing finite was evaluated, or nothing at all
            return self._measure_start()
        self.evaluator.restore_lowest(self.twin)
        loss = self._loss_for_all(self.twin) if self.config.resample else self.evaluator.lowest
        return self._record(loss, self.evaluator.last, self.task.error(self.twin))

    def _loss_for_all(self, model: nn.Module) -> float:
        return self.task.loss_on(model, self.task.splits["test"])

    def _measure_start(self) -> None:
        """Before the first evaluation; this one is not counted, and nothing is kept of it."""
        with torch.no_grad():
            loss = self._loss_for_all(self.model) if self.config.resample else float(self.forward()[0])
        self._record(loss, loss, self.task.error(self.model))

    def _record(self, lowest: float, last: float, error: float) -> None:
        record: dict[str, Any] = {
            "step": self.step, "epoch": float(self.step), "seconds": round(self.seconds, 4), "train_loss": last,
            "valid_loss": lowest, "test_loss": lowest, "test_error": error,
        }  # fmt: skip
        stats = getattr(self.optimizer, "stats", None)
        if stats is not None and not self._inside:
            record |= {"optimizer_steps" if name == "steps" else name: value for name, value in asdict(stats).items()}
        self.metrics.append(record)
        saving.measured(self, record)

    def result(self) -> dict[str, Any]:
        found = super().result()
        if isinstance(self.optimizer, WholeGradient):
            stats = self.optimizer.stats
            found["final"] = {**found["final"], **{name: getattr(stats, name) for name in AT_THE_END}}
        if self.config.resample:
            found["noise"] = self.noise()
        return found if self.stopped_at is None else {**found, "stopped_at": self.stopped_at}

    def noise(self) -> float:
        """By how much the loss of a new sample differs from that of all, as a share of it: the mean over some."""
        loss = self._loss_for_all(self.model)
        others = [self.task.loss_on(self.model, self.task.sample(UNSEEN + i)) for i in range(NOISE_SAMPLES)]
        return mean(abs(other - loss) for other in others) / loss

    # ------------------------------------------------------------------ saving and resuming

    def save(self) -> None:
        if not self._inside:  # an optimizer is whole only between its steps
            super().save()

    def more_state(self) -> dict[str, Any]:
        kept = {"evaluator": self.evaluator.state(), "stopped_at": self.stopped_at}
        return {**kept, "sample": self.sample} if self.config.resample else kept

    def load_more(self, state: dict[str, Any]) -> None:
        if "evaluator" not in state:
            raise UserError("the checkpoint was made by a version without whole batches: delete the folder")
        self.evaluator.load(state["evaluator"])
        self.stopped_at = None if state["stopped_at"] is None else int(state["stopped_at"])
        if self.config.resample:
            self.sample = state["sample"]
            self.batch = self.task.sample(self.sample)
