"""One run: trained, measured, saved, and resumed bit for bit."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from adaqn import QuasiNewton
from adaqn.experiments.errors import UserError, told
from adaqn.experiments.optimizers import entry, prepare_model
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.training import saving
from adaqn.experiments.training.averages import AVERAGED, GrowingAverage, averages_itself, check_averaging, evaluated
from adaqn.experiments.training.claims import Claim
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, METRICS_CHECKSUM, RESULT, sha256
from adaqn.experiments.training.interrupts import interrupts_noted
from adaqn.experiments.training.memory import check_optimizer, check_run
from adaqn.experiments.training.optimizer_memory import state_bytes
from adaqn.experiments.training.options import make_optimizer, resolved
from adaqn.experiments.training.passes import Passes
from adaqn.experiments.training.schedule import Schedule
from adaqn.experiments.training.stepping import take_step
from adaqn.experiments.training.storage import write_sealed
from adaqn.experiments.training.team import ALONE, Team


@dataclass(frozen=True)
class Progress:
    """Told after every step."""

    step: int
    steps: int
    loss: float | None
    """The mean training loss since the last report; ``None`` where it was not read."""


Listener = Callable[[Progress], None]


class Run:
    """A configuration at work. ``folder=None`` keeps everything in memory."""

    counts_evaluations = False
    """Is ``step`` the number of evaluations, of which a step of the optimizer may have several?"""
    blocking = False
    """Does a step of the optimizer end only when the run does?"""

    def __init__(
        self, config: RunConfig, folder: Path | None = None, data_dir: Path | None = None, team: Team = ALONE
    ) -> None:
        self.config = resolved(config)
        team.check(self.config)
        self.folder = folder
        self.claim: Claim | None = None
        self.team = team
        check_run(self.config)
        torch.set_num_threads(self.config.threads)
        torch.manual_seed(self.config.seed)
        self.task = make_task(self.config, data_dir)
        self.task.share = team.share
        self.model: nn.Module = prepare_model(self.config.optimizer, self.task.model())
        asked = self.config.averaging
        average = None if asked is None else GrowingAverage(self.model, asked)  # before an optimizer hooks into it
        self.optimizer = make_optimizer(
            self.config.optimizer, self.config.lr, self.config.options, self.model, self.task
        )
        check_optimizer(self.optimizer, self.config)
        self.growing = average if check_averaging(asked, self.optimizer, self.config.optimizer) else None
        self.passes = Passes(self.model, self.config.batch_size or 1)
        self.wrapped = team.wrapped(self.model)
        self.has_pairs = isinstance(self.optimizer, QuasiNewton)
        self.kind = entry(self.config.optimizer).step
        if self.kind == "indexed" and self.config.carry_state:
            raise UserError(f"{self.config.optimizer} chooses its batches itself: leave out carry_state")
        if self.kind == "outputs" and self.config.clip is not None:
            raise UserError(f"{self.config.optimizer} makes its own gradients: leave out clip")
        self.total = self.config.steps or max(1, round(self.config.epochs * self.task.steps_per_epoch))
        self.every = max(1, self.task.steps_per_epoch // self.config.evaluations)
        self.schedule = Schedule(self.config, self.optimizer.param_groups, self.total)
        self.step = 0
        self.seconds = 0.0
        self.hidden: Any = None
        self.loss_sum: Tensor = torch.zeros((), dtype=torch.float64, device=self.config.device)
        self.pairs_sum = 0
        self.summed = 0
        self.metrics: list[dict[str, Any]] = []
        self.is_resumed = False
        self.has_stepped = False
        self.average: AveragedModel | None = None
        if self.config.average is not None:
            self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(self.config.average))  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------ training

    def train(self, listener: Listener | None = None) -> dict[str, Any]:
        """Go on until the last step; returns the result. Interrupted, it saves where it is."""
        checkpoint_every = saving.checkpoint_seconds()
        if not self.metrics:
            self.measure()
        try:
            with subnormals_flushed(), interrupts_noted() as interrupted:
                self._train(listener, interrupted, checkpoint_every)
        except KeyboardInterrupt:
            self.save()
            raise
        result = self.result()
        if self.folder is not None and self.team.writes:
            self.save()
            write_sealed(self.folder / RESULT, {**result, METRICS_CHECKSUM: sha256(saving.metrics_text(self))})
        return result

    def _train(self, listener: Listener | None, interrupted: threading.Event, checkpoint_every: float) -> None:
        saved, pause = time.monotonic(), checkpoint_every
        while self.step < self.total:
            stops = self.advance(stops=interrupted.is_set())
            loss = self.told_loss()
            if self.is_due():
                self.measure()
            if (begun := time.monotonic()) - saved > pause:
                self.save()
                saved = time.monotonic()
                pause = saving.pause_after(saved - begun, checkpoint_every)
            # Whoever ends the run here finds nothing half done: the step is counted, its evaluation is made.
            if listener is not None:
                listener(Progress(self.step, self.total, loss))
            if stops or (interrupted.is_set() and self.team.count == 1):
                raise KeyboardInterrupt

    def is_due(self) -> bool:
        """Is there something to be measured after this step?"""
        return self.step % self.every == 0 or self.step == self.total

    def told_loss(self) -> float | None:
        """For who listens: reading it costs time on a GPU."""
        return self._mean_loss() if self.step % 10 == 0 else None

    def set_step_size(self) -> None:
        """That of the next step. Optimizers that search along a line, or for a batch, choose their own."""
        if self.kind == "plain":
            self.schedule.set(self.optimizer.param_groups, self.step)

    def advance(self, *, stops: bool = False) -> bool:
        """One step; returns whether any process wants to stop after it."""
        try:
            stops = self._advance(stops)
            self.has_stepped = True
            return stops
        except Exception as error:  # whatever an optimizer raises for an option, or for a state that is not its own
            blamed = None if isinstance(error, UserError) or told(error) else self._blamed()
            if blamed is None:
                raise
            raise UserError(f"{blamed} ({type(error).__name__}: {error})") from error

    def _blamed(self) -> str | None:
        """What is at fault if the first step raises: what a user gave; ``None`` is the program itself."""
        if self.has_stepped:
            return None
        if self.is_resumed and self.team.count == 1:
            return f"{self.folder}: its {CHECKPOINT} does not fit this run, and was left in place"
        return f"{self.config.optimizer} with {self.config.options} cannot make a step" if self.config.options else None

    def _advance(self, stops: bool) -> bool:
        start = time.perf_counter()
        index = self.optimizer.next_index() if self.kind == "indexed" else self.step  # type: ignore[attr-defined]
        x, target = self.task.share(self.task.batch(index))
        hidden = self.hidden if self.task.continues(self.step) else None
        last: list[Any] = [None, None]

        def forward() -> tuple[Tensor, Tensor]:
            output = self.wrapped(x, hidden)
            loss = self.task.losses(output, target).mean()
            if last[0] is None:
                last[:] = [loss.detach(), output[1]]
            return loss, output[0]

        clip = None if self.config.clip is None else (self.model, self.config.clip)
        self.set_step_size()
        with self.passes:
            take_step(self.optimizer, self.kind, forward, index, clip)
        self.hidden = detached(last[1]) if self.config.carry_state else None
        self.step += 1
        loss, stops = self.team.totals(last[0], stops)
        self.loss_sum += loss
        if self.has_pairs:
            self.pairs_sum += self.optimizer.stats.pairs  # type: ignore[attr-defined]
        self.summed += 1
        if self.growing is not None and self.step > self.config.warm_up:
            self.growing.update(self.model)
        self.seconds += time.perf_counter() - start
        if self.average is not None:
            self.average.update_parameters(self.model)
        return stops

    def _mean_loss(self) -> float | None:
        return float(self.loss_sum) / self.summed if self.summed else None

    # ------------------------------------------------------------------ measuring

    def measure(self) -> None:
        record: dict[str, Any] = {
            "step": self.step,
            "epoch": self.step / self.task.steps_per_epoch,
            "seconds": round(self.seconds, 3),
            "train_loss": self._mean_loss(),
        }
        with evaluated(self.optimizer):
            record |= self._evaluated("", self.model)
        if averages_itself(self.optimizer):
            with self.optimizer.averaged():  # type: ignore[attr-defined]  # a common work of all processes
                record |= self._evaluated(AVERAGED, self.model)
        elif self.growing is not None:
            begun = self.growing.count > 0
            record |= self._evaluated(AVERAGED, self.growing.model if begun else self.model)
        for split in ("valid", "test") if self.team.writes else ():
            if self.average is not None and self.step == self.total:
                for name, value in self.task.evaluate(self.average.module, split).items():
                    record[f"average_{split}_{name}"] = value
        stats = getattr(self.optimizer, "stats", None)
        if stats is not None:
            record |= {"optimizer_steps" if name == "steps" else name: value for name, value in asdict(stats).items()}
        record["passes"] = self.passes.with_products(record)
        if self.has_pairs:
            record["average_memory"] = self.pairs_sum / max(1, self.summed)
        self.loss_sum.zero_()
        self.pairs_sum = self.summed = 0
        self.metrics.append(record)
        saving.measured(self, record)

    def _evaluated(self, prefix: str, model: nn.Module) -> dict[str, Any]:
        """The losses of a model as it is, in the process that measures."""
        splits = ("valid", "test") if self.team.writes else ()
        return {
            f"{prefix}{split}_{name}": value
            for split in splits
            for name, value in self.task.evaluate(model, split).items()
        }

    def result(self) -> dict[str, Any]:
        """The best validation loss, and the test loss at that point and at the end; of the process that measures."""
        if not self.team.writes:
            return {}
        finite = [r for r in self.metrics if r["valid_loss"] is not None and math.isfinite(r["valid_loss"])]
        best = min(finite, key=lambda r: r["valid_loss"]) if finite else self.metrics[-1]
        return {
            "config": self.config.to_json(),
            "identity": self.config.identity(),
            "steps": self.step,
            "seconds": round(self.seconds, 3),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "parameter_bytes": sum(p.numel() * p.element_size() for p in self.model.parameters()),
            "optimizer_bytes": None
            if self.blocking
            else state_bytes(self.optimizer),  # others keep theirs to themselves
            "unit": self.task.unit,
            "data_sha256": self.task.sha256,
            "final": self.metrics[-1],
            "best": best,
        }

    # ------------------------------------------------------------------ saving and resuming

    def begin(self) -> None:
        """Write ``config.json`` into an empty folder."""
        saving.begin(self)

    def save(self) -> None:
        """Write a checkpoint, where there is a folder."""
        saving.save(self)

    def resume(self) -> None:
        """Take up at the last checkpoint; what was measured after it is measured again."""
        saving.resume(self)

    def more_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the usual."""
        return {}

    def load_more(self, state: dict[str, Any]) -> None:
        """Take that from a checkpoint."""


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Gradients that vanish through many time steps become subnormal numbers, which a CPU handles many times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def detached(hidden: Any) -> Any:
    """The hidden state without its graph."""
    if hidden is None:
        return None
    return tuple(h.detach() for h in hidden) if isinstance(hidden, tuple) else hidden.detach()
