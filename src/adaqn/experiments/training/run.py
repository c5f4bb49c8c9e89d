"""One run: trained, measured, saved, and resumed bit for bit."""

from __future__ import annotations

import math
import os
import platform
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

import adaqn
from adaqn.experiments.errors import UserError
from adaqn.experiments.library import QuasiNewton
from adaqn.experiments.optimizers import entry, known_classes, prepare_model
from adaqn.experiments.problems.tasks import make_task
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, CONFIG, METRICS, RESULT, keep_cycles, recall_cycles
from adaqn.experiments.training.interrupts import interrupts_noted
from adaqn.experiments.training.options import make_optimizer, resolved
from adaqn.experiments.training.stepping import take_step
from adaqn.experiments.training.storage import (
    json_text,
    load_checkpoint,
    read_lines,
    save_checkpoint,
    write_atomically,
    write_json,
)
from adaqn.experiments.training.team import ALONE, Team

CHECKPOINT_VARIABLE = "ADAQN_CHECKPOINT_SECONDS"
"""Seconds between two checkpoints, if not 30."""


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

    def __init__(
        self, config: RunConfig, folder: Path | None = None, data_dir: Path | None = None, team: Team = ALONE
    ) -> None:
        self.config = resolved(config)
        team.check(self.config)
        self.folder = folder
        self.team = team
        torch.set_num_threads(self.config.threads)
        torch.manual_seed(self.config.seed)
        self.task = make_task(self.config, data_dir)
        self.task.share = team.share
        self.model: nn.Module = prepare_model(self.config.optimizer, self.task.model())
        self.optimizer = make_optimizer(
            self.config.optimizer, self.config.lr, self.config.options, self.model, self.task
        )
        self.wrapped = team.wrapped(self.model)
        self.has_pairs = isinstance(self.optimizer, QuasiNewton)
        self.kind = entry(self.config.optimizer).step
        if self.kind == "indexed" and self.config.carry_state:
            raise UserError(f"{self.config.optimizer} chooses its batches itself: leave out carry_state")
        if self.kind == "outputs" and self.config.clip is not None:
            raise UserError(f"{self.config.optimizer} makes its own gradients: leave out clip")
        self.total = self.config.steps or max(1, round(self.config.epochs * self.task.steps_per_epoch))
        self.every = max(1, self.task.steps_per_epoch // self.config.evaluations)
        self.step = 0
        self.seconds = 0.0
        self.hidden: Any = None
        self.loss_sum: Tensor = torch.zeros((), dtype=torch.float64, device=self.config.device)
        self.pairs_sum = 0
        self.summed = 0
        self.metrics: list[dict[str, Any]] = []
        self.average: AveragedModel | None = None
        if self.config.average is not None:
            self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(self.config.average))  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------ training

    def train(self, listener: Listener | None = None) -> dict[str, Any]:
        """Go on until the last step; returns the result. Interrupted, it saves where it is."""
        checkpoint_every = checkpoint_seconds()
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
            write_json(self.folder / RESULT, result)
        return result

    def _train(self, listener: Listener | None, interrupted: threading.Event, checkpoint_every: float) -> None:
        saved = time.monotonic()
        while self.step < self.total:
            stops = self.advance(stops=interrupted.is_set())
            loss = self._mean_loss() if self.step % 10 == 0 else None
            if self.step % self.every == 0 or self.step == self.total:
                self.measure()
            if time.monotonic() - saved > checkpoint_every:
                self.save()
                saved = time.monotonic()
            # Whoever ends the run here finds nothing half done: the step is counted, its evaluation is made.
            if listener is not None:
                listener(Progress(self.step, self.total, loss))
            if stops or (interrupted.is_set() and self.team.count == 1):
                raise KeyboardInterrupt

    def advance(self, *, stops: bool = False) -> bool:
        """One step; returns whether any process wants to stop after it."""
        try:
            return self._advance(stops)
        except (AssertionError, RuntimeError) as error:
            if self.step or not self.config.options:
                raise
            raise UserError(f"{self.config.optimizer} with {self.config.options}: {error}") from error

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
        take_step(self.optimizer, self.kind, forward, index, clip)
        self.hidden = detached(last[1]) if self.config.carry_state else None
        self.step += 1
        loss, stops = self.team.totals(last[0], stops)
        self.loss_sum += loss
        if self.has_pairs:
            self.pairs_sum += self.optimizer.stats.pairs  # type: ignore[attr-defined]
        self.summed += 1
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
        for split in ("valid", "test") if self.team.writes else ():
            for name, value in self.task.evaluate(self.model, split).items():
                record[f"{split}_{name}"] = value
            if self.average is not None and self.step == self.total:
                for name, value in self.task.evaluate(self.average.module, split).items():
                    record[f"average_{split}_{name}"] = value
        stats = getattr(self.optimizer, "stats", None)
        if stats is not None:
            record |= {"optimizer_steps" if name == "steps" else name: value for name, value in asdict(stats).items()}
        if self.has_pairs:
            record["average_memory"] = self.pairs_sum / max(1, self.summed)
        self.loss_sum.zero_()
        self.pairs_sum = self.summed = 0
        self.metrics.append(record)
        if self.folder is not None and self.team.writes:
            self._append(record)
            self._keep_cycles(self.folder)

    def _append(self, record: dict[str, Any]) -> None:
        assert self.folder is not None
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json_text(record) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.folder / METRICS}: {error.strerror}") from error

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
            "unit": self.task.unit,
            "data_sha256": self.task.sha256,
            "final": self.metrics[-1],
            "best": best,
        }

    # ------------------------------------------------------------------ saving and resuming

    def begin(self) -> None:
        """Write ``config.json`` into an empty folder."""
        assert self.folder is not None
        if (self.folder / CONFIG).exists():
            raise UserError(f"{self.folder} already holds a run: --resume continues it, or choose another folder")
        write_json(self.folder / CONFIG, {"run": self.config.to_json(), "made_with": self.surroundings()})

    def surroundings(self) -> dict[str, Any]:
        """What else a repetition needs to know."""
        return {
            "adaqn": adaqn.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": self.config.threads,
            "processes": self.team.count,
            "data_sha256": self.task.sha256,
            "identity": self.config.identity(),
        }

    def save(self) -> None:
        if self.folder is None or not self.team.writes:
            return
        state = {
            "identity": self.config.identity(),
            "data_sha256": self.task.sha256,
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "hidden": self.hidden,
            "loss_sum": self.loss_sum,
            "pairs_sum": self.pairs_sum,
            "summed": self.summed,
            "measured": len(self.metrics),
            "random": torch.get_rng_state(),
        }
        save_checkpoint(self.folder / CHECKPOINT, state)
        self._keep_cycles(self.folder)

    def _keep_cycles(self, folder: Path) -> None:
        if isinstance(self.optimizer, QuasiNewton):
            keep_cycles(folder, self.optimizer)

    def resume(self) -> None:
        """Take up at the last checkpoint; what was measured after it is measured again."""
        assert self.folder is not None
        path = self.folder / CHECKPOINT
        state: dict[str, Any] = {"measured": 0}
        if path.exists():
            state = load_checkpoint(path, known_classes(self.config.optimizer))
        if path.exists():
            identities = (self.config.identity(), self.config.identity(as_written=True))
            for name, ours in (("identity", identities), ("data_sha256", (self.task.sha256,))):
                if state.get(name) not in ours:
                    raise UserError(
                        f"{path} is of another run: its {name} is {state.get(name)}, and this run's is {ours[0]}"
                    )
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            for name in ("step", "seconds", "hidden", "loss_sum", "pairs_sum", "summed"):
                setattr(self, name, state[name])
            torch.set_rng_state(state["random"])
            if isinstance(self.optimizer, QuasiNewton):
                recall_cycles(self.folder, self.optimizer)
        self.metrics = read_lines(self.folder / METRICS)[: state["measured"]]
        if len(self.metrics) < state["measured"]:
            raise UserError(
                f"{self.folder / METRICS} has {len(self.metrics)} evaluations, and the checkpoint knows of "
                f"{state['measured']}: delete the folder to run it anew"
            )
        if not self.team.writes:
            return
        kept = "".join(json_text(record) + "\n" for record in self.metrics)
        write_atomically(self.folder / METRICS, kept.encode())


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Gradients that vanish through many time steps become subnormal numbers, which a CPU handles many times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def checkpoint_seconds() -> float:
    """Seconds between two checkpoints."""
    text = os.environ.get(CHECKPOINT_VARIABLE, "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0.0:
        raise UserError(f"{CHECKPOINT_VARIABLE} must be a number of seconds of at least 0, got {text!r}")
    return seconds


def detached(hidden: Any) -> Any:
    """The hidden state without its graph."""
    if hidden is None:
        return None
    return tuple(h.detach() for h in hidden) if isinstance(hidden, tuple) else hidden.detach()
