"""What a run leaves in its folder while it is at work, and how it goes on from there bit for bit."""

from __future__ import annotations

import math
import os
import platform
from typing import TYPE_CHECKING, Any

import torch

import adaqn
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import known_classes
from adaqn.experiments.training.folder import CHECKPOINT, CONFIG, METRICS, keep_cycles, recall_cycles
from adaqn.experiments.training.storage import (
    json_text,
    load_checkpoint,
    read_lines,
    save_checkpoint,
    write_atomically,
    write_json,
)

if TYPE_CHECKING:
    from adaqn.experiments.training.run import Run

CHECKPOINT_VARIABLE = "ADAQN_CHECKPOINT_SECONDS"
"""Seconds between two checkpoints, if not 30."""


def begin(run: Run) -> None:
    """Write ``config.json`` into an empty folder."""
    assert run.folder is not None
    if (run.folder / CONFIG).exists():
        raise UserError(f"{run.folder} already holds a run: --resume continues it, or choose another folder")
    write_json(run.folder / CONFIG, {"run": run.config.to_json(), "made_with": surroundings(run)})


def surroundings(run: Run) -> dict[str, Any]:
    """What else a repetition needs to know."""
    return {
        "adaqn": adaqn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": run.config.threads,
        "processes": run.team.count,
        "data_sha256": run.task.sha256,
        "identity": run.config.identity(),
    }


def save(run: Run) -> None:
    if run.folder is None or not run.team.writes:
        return
    state = {
        "identity": run.config.identity(),
        "data_sha256": run.task.sha256,
        "step": run.step,
        "seconds": run.seconds,
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "average": None if run.average is None else run.average.state_dict(),
        "hidden": run.hidden,
        "loss_sum": run.loss_sum,
        "pairs_sum": run.pairs_sum,
        "summed": run.summed,
        "measured": len(run.metrics),
        "random": torch.get_rng_state(),
        **run.more_state(),
    }
    save_checkpoint(run.folder / CHECKPOINT, state)
    _keep(run)


def resume(run: Run) -> None:
    """Take up at the last checkpoint; what was measured after it is measured again."""
    assert run.folder is not None
    path = run.folder / CHECKPOINT
    state: dict[str, Any] = {"measured": 0}
    if path.exists():
        state = load_checkpoint(path, known_classes(run.config.optimizer))
        identities = (run.config.identity(), run.config.identity(as_written=True))
        for name, ours in (("identity", identities), ("data_sha256", (run.task.sha256,))):
            if state.get(name) not in ours:
                raise UserError(
                    f"{path} is of another run: its {name} is {state.get(name)}, and this run's is {ours[0]}"
                )
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        if run.average is not None:
            run.average.load_state_dict(state["average"])
        for name in ("step", "seconds", "hidden", "loss_sum", "pairs_sum", "summed"):
            setattr(run, name, state[name])
        run.load_more(state)
        torch.set_rng_state(state["random"])
        recall_cycles(run.folder, run.optimizer)
    run.metrics = read_lines(run.folder / METRICS)[: state["measured"]]
    if len(run.metrics) < state["measured"]:
        raise UserError(
            f"{run.folder / METRICS} has {len(run.metrics)} evaluations, and the checkpoint knows of "
            f"{state['measured']}: delete the folder to run it anew"
        )
    if not run.team.writes:
        return
    kept = "".join(json_text(record) + "\n" for record in run.metrics)
    write_atomically(run.folder / METRICS, kept.encode())


def measured(run: Run, record: dict[str, Any]) -> None:
    """One more line of ``metrics.jsonl``."""
    if run.folder is None or not run.team.writes:
        return
    try:
        with (run.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json_text(record) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {run.folder / METRICS}: {error.strerror}") from error
    _keep(run)


def _keep(run: Run) -> None:
    if run.folder is not None:
        keep_cycles(run.folder, run.optimizer)


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
