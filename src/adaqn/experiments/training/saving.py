"""What a run leaves in its folder while it is at work, and how it goes on from there bit for bit."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import adaqn
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import known_classes
from adaqn.experiments.reading import is_there, parse_json, read_lines
from adaqn.experiments.schema import check, count, number, record, several, text
from adaqn.experiments.training.checkpoint import AGAIN, load_checkpoint, save_checkpoint
from adaqn.experiments.training.cycles import keep_cycles, recall_cycles
from adaqn.experiments.training.folder import (
    CHECKPOINT,
    CONFIG,
    MEASUREMENT,
    METRICS,
    identities,
    known_identities,
    refuse_other,
)
from adaqn.experiments.training.storage import append, json_text, keep_warning, write_atomically, write_sealed

if TYPE_CHECKING:
    from adaqn.experiments.training.run import Run

CHECKPOINT_VARIABLE = "ADAQN_CHECKPOINT_SECONDS"
"""Seconds between two checkpoints, if not 30."""
LEAST_RATIO = 20.0
"""Of the time between two checkpoints to that of one."""


def begin(run: Run) -> None:
    """Write ``config.json`` into an empty folder."""
    assert run.folder is not None
    if is_there(run.folder / CONFIG):
        raise UserError(f"{run.folder} already holds a run: --resume continues it, or choose another folder")
    write_sealed(run.folder / CONFIG, {"run": run.config.to_json(), "made_with": surroundings(run)})


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
        "unit": run.task.unit,
    }


def _writes(run: Run) -> bool:
    """Does this process leave anything? A run that another has taken over is an error."""
    if run.folder is None or not run.team.writes:
        return False
    if run.claim is not None:
        run.claim.check()
    return True


def save(run: Run) -> None:
    if not _writes(run):
        return
    assert run.folder is not None
    state = {
        "identity": run.config.identity(),
        "data_sha256": run.task.sha256,
        "step": run.step,
        "seconds": run.seconds,
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "average": None if run.average is None else run.average.state_dict(),
        **({} if run.growing is None else {"growing": run.growing.state()}),
        "hidden": run.hidden,
        "loss_sum": run.loss_sum,
        "pairs_sum": run.pairs_sum,
        "summed": run.summed,
        "examples": run.passes.examples,
        "measured": len(run.metrics),
        "metrics": metrics_text(run),
        "random": torch.get_rng_state(),
        **run.more_state(),
    }
    save_checkpoint(run.folder / CHECKPOINT, state)
    _keep(run)


def resume(run: Run) -> None:
    """Take up at the last checkpoint, which decides: what was measured after it is measured again.

    It holds all that was measured before, so that a file of metrics that was lost, cut or damaged is made whole.
    """
    assert run.folder is not None
    path, known = run.folder / CHECKPOINT, known_identities(run.folder)
    if not {*known} & {*identities(run.config)}:
        refuse_other(run.folder / CONFIG, known[0], identities(run.config))
    if is_there(path):
        state = load_checkpoint(path, known_classes(run.config.optimizer))
        _check(run, state, path)
        try:
            run.metrics = _metrics(run, state)
            _take(run, state)
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:  # whatever an optimizer raises for a state that is not its own
            raise UserError(f"{path} does not fit this run ({type(error).__name__}: {error}); {AGAIN}") from error
        recall_cycles(run.folder, run.optimizer)
        run.is_resumed = True
    if run.team.writes:
        write_atomically(run.folder / METRICS, metrics_text(run).encode())


def _check(run: Run, state: dict[str, Any], path: Path) -> None:
    """Is it of this run, and are its numbers such as a run has?"""
    refuse_other(path, state["identity"], identities(run.config))
    refuse_other(path, state["data_sha256"], [run.task.sha256], "data_sha256")
    numbers = {"step": number(0, run.total, whole=True), "seconds": number(0.0, 1e15)}
    counts = dict.fromkeys(("pairs_sum", "summed", "measured"), count)
    check(state, record({**numbers, **counts}, {"metrics": text, "examples": count}), path)
    loss = state["loss_sum"]
    if not isinstance(loss, torch.Tensor) or loss.shape != () or loss.dtype != run.loss_sum.dtype:
        raise UserError(f"{path} does not fit this run: its loss_sum is no number of float64; {AGAIN}")


def _take(run: Run, state: dict[str, Any]) -> None:
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    if run.average is not None:
        run.average.load_state_dict(state["average"])
    if run.growing is not None:
        run.growing.load(state["growing"])
    run.loss_sum = state["loss_sum"].to(run.loss_sum.device)
    for name in ("step", "seconds", "hidden", "pairs_sum", "summed"):
        setattr(run, name, state[name])
    run.passes.examples = state.get("examples", 0)  # versions up to 0.2 did not count them
    run.load_more(state)
    torch.set_rng_state(state["random"])


def _metrics(run: Run, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that the checkpoint knows of."""
    assert run.folder is not None
    wanted = state["measured"]
    if "metrics" in state:
        known = [parse_json(line) for line in state["metrics"].splitlines()]
        check(known, several(MEASUREMENT, wanted), run.folder / CHECKPOINT)
        return known
    found = read_lines(run.folder / METRICS)[:wanted]  # versions up to 0.2 had them in the file alone
    if len(found) < wanted:
        lost = f"{METRICS} had {len(found)} of {wanted} evaluations when the run was resumed; the others are lost"
        keep_warning(run.folder, lost)
    return found


def metrics_text(run: Run) -> str:
    """All lines of ``metrics.jsonl``."""
    return "".join(json_text(record) + "\n" for record in run.metrics)


def measured(run: Run, record: dict[str, Any]) -> None:
    """One more line of ``metrics.jsonl``."""
    if not _writes(run):
        return
    assert run.folder is not None
    append(run.folder / METRICS, (json_text(record) + "\n").encode())
    _keep(run)


def _keep(run: Run) -> None:
    if run.folder is not None:
        keep_cycles(run.folder, run.optimizer, run.config.identity())


def pause_after(seconds: float, usual: float) -> float:
    """Until the next checkpoint, after one that took so long: the state of a large model takes many seconds.

    >>> pause_after(0.1, 30.0), pause_after(12.0, 30.0)
    (30.0, 240.0)
    """
    return max(usual, LEAST_RATIO * seconds) if usual else 0.0


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
