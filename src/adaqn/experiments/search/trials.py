"""The queue of a search, kept by Optuna: points wait, are claimed by workers on any machine, and are told of."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from adaqn.experiments.errors import UserError
from adaqn.experiments.search.points import SECOND, Point, configured
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import folder_name
from adaqn.experiments.training.interrupts import end_with_parent
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.run import Progress
from adaqn.experiments.training.storage import warnings_kept

Curves = dict[str, RunConfig]
"""What is tuned, by name: each an optimizer, perhaps with options of its own."""

HEARTBEAT, STALE = 60, 600
"""Seconds between two signs of life of a worker, and after how many without one its point is run again."""


def storage(url: str) -> RDBStorage:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(url, heartbeat_interval=HEARTBEAT, grace_period=STALE)
    except Exception as error:  # whatever the database's driver raises
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot open the storage {without_password(url)}: {reason}") from error


def without_password(url: str) -> str:
    """The address as it may be shown.

    >>> without_password("postgresql://me:secret@host/studies")
    'postgresql://me:***@host/studies'
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def lock(out: Path, name: str) -> FileLock:
    """Held while something is claimed or run; free again when its process ends, however it ends."""
    folder = out / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{name}.lock")


def claim_name(study: optuna.Study, number: int) -> str:
    return f"{study.study_name}-{number}".replace("/", "-")


def prepare(curves: Curves, points: dict[str, list[Point]], url: str, name: str, out: Path) -> None:
    """Queue every point that is not there yet, and those whose worker died."""
    for curve, wanted in points.items():
        study = optuna.create_study(
            storage=storage(url), study_name=f"{name}/{curve}", direction="minimize", load_if_exists=True
        )
        base, before = curves[curve].to_json(), study.user_attrs.get("base", curves[curve].to_json())
        changed = [key for key in base if base[key] != before.get(key) and key not in ("lr", "threads", "device")]
        if changed:
            raise UserError(
                f"the study {study.study_name} was begun with other settings ({changed[0]} was "
                f"{before.get(changed[0])!r}, and is {base[changed[0]]!r} now): choose another --name or --out"
            )
        study.set_user_attr("base", base)
        fail_stale(study)
        for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            claim = claim_name(study, trial.number)
            if (out / "locks" / f"{claim}.lock").exists():  # it was run here
                with contextlib.suppress(Timeout), lock(out, claim).acquire(timeout=0):
                    study.tell(trial.number, state=TrialState.FAIL)
                    study.enqueue_trial(trial.params)
        known = [_point(t) for t in study.get_trials(deepcopy=False) if t.state is not TrialState.FAIL]
        for point in wanted:
            if not any(_same(point, other) for other in known):
                study.enqueue_trial(point)


def work(curves_json: dict[str, Any], url: str, name: str, out: Path, data_dir: Path | None, stop: Any) -> None:
    """Take points from the queues until none is waiting; told to stop, save the run and put its point back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells
    end_with_parent()

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    database = storage(url)
    for curve, values in curves_json.items():
        base = RunConfig.from_json(values)
        study = optuna.load_study(storage=database, study_name=f"{name}/{curve}")
        while not stop.is_set():
            with lock(out, "claim"):  # SQLite would let two workers take the same one
                if not study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
                    break
                trial = study.ask()
                if _is_duplicate(study, trial.number):
                    study.tell(trial, state=TrialState.FAIL)
                    continue
                held = lock(out, claim_name(study, trial.number))
                held.acquire()
            point = {
                "lr": trial.suggest_float("lr", 1e-12, 1e12, log=True),  # queued: only the range is declared here
                "choice": trial.suggest_int("choice", 0, len(SECOND.get(base.optimizer, [{}])) - 1),
            }
            config = configured(base, point)
            beaten = 0.0

            def listener(_: Progress, trial: optuna.Trial = trial) -> None:
                nonlocal beaten
                if stop.is_set():
                    raise KeyboardInterrupt
                if time.monotonic() - beaten > HEARTBEAT / 2:  # other machines see that this point is in good hands
                    database.record_heartbeat(trial._trial_id)
                    beaten = time.monotonic()

            try:
                folder = out / "runs" / folder_name(config)
                with warnings_kept(folder):
                    done = run_one(config, folder, data_dir, listener)
                loss = done.result["final"]["valid_loss"]
                study.tell(trial, loss if math.isfinite(loss) else math.inf)
            except KeyboardInterrupt:
                study.tell(trial, state=TrialState.FAIL)
                study.enqueue_trial(point)
                return
            finally:
                held.release()


def fail_stale(study: optuna.Study) -> None:
    """Points whose worker, on whatever machine, has given no sign of life: they will be queued again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls this an experimental feature
        optuna.storages.fail_stale_trials(study)


def _is_duplicate(study: optuna.Study, number: int) -> bool:
    """Was the same point queued before? Two machines that start at once both queue the whole grid.

    Or is there no point? Another machine may have taken the last one since we looked.
    """
    trials = study.get_trials(deepcopy=False)
    point = _point(trials[number])
    if not point:
        return True
    return any(_same(_point(earlier), point) for earlier in trials[:number] if earlier.state is not TrialState.FAIL)


def _point(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    point: dict[str, Any] = trial.system_attrs.get("fixed_params", trial.params)
    return point


def studies(curves: Curves, url: str, name: str) -> dict[str, optuna.Study]:
    return {curve: optuna.load_study(storage=url, study_name=f"{name}/{curve}") for curve in curves}


def running(curves: Curves, url: str, name: str) -> bool:
    found = studies(curves, url, name).values()
    return any(study.get_trials(deepcopy=False, states=[TrialState.RUNNING]) for study in found)


def finished_counts(curves: Curves, url: str, name: str) -> dict[str, int]:
    found = studies(curves, url, name)
    return {c: len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])) for c, study in found.items()}


def results(curves: Curves, url: str, name: str) -> dict[str, dict[str, Any]]:
    """curve → its best point, and every point with its validation loss."""
    found = {}
    for curve, study in studies(curves, url, name).items():
        choices = SECOND.get(curves[curve].optimizer, [{}])
        trials = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        points = [{"lr": t.params["lr"], **choices[t.params["choice"]], "valid_loss": t.value} for t in trials]
        points.sort(key=lambda point: point["valid_loss"])
        found[curve] = {"best": points[0] if points else None, "trials": points}
    return found


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.get("choice") == b.get("choice") and math.isclose(a.get("lr", -2.0), b.get("lr", -1.0), rel_tol=1e-9)
