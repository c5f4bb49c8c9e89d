"""A search on Optuna: its storage keeps the queue, shared by workers on any machine.

Points wait as trials of Optuna; a trial whose worker gives no sign of life is failed by Optuna, and what was not
finished is queued again, because the next points are worked out from the finished ones.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from adaqn.experiments.errors import UserError
from adaqn.experiments.search.points import Point, check, choices, configured, due
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import folder_name
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.parallel import Workers, check_workers, started_workers

Curves = dict[str, RunConfig]
"""What is tuned, by name: each an optimizer, perhaps with options of its own."""
Told = Callable[[dict[str, int]], None]
"""Is told how many runs of which curve are finished."""

HEARTBEAT, STALE = 10, 60
"""Seconds between two signs of life of a worker, and after how many without one its point is run again."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at points that are at work elsewhere."""


@contextmanager
def quiet_heartbeats() -> Iterator[None]:
    """Signs of life are an experiment of Optuna's, which it says to every user at every use, and from every thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield


def for_optimizers(base: RunConfig, names: Sequence[str]) -> Curves:
    """The same run for several optimizers."""
    return {name: replace(base, optimizer=name) for name in names}


def tune(
    curves: Curves,
    budget: int,
    out: Path,
    *,
    search: str = "grid",
    url: str | None = None,
    name: str = "tuning",
    workers: int = 2,
    data_dir: Path | None = None,
    told: Told | None = None,
) -> dict[str, dict[str, Any]]:
    """Run the whole search; returns for each curve its best point by validation loss, and all points."""
    for base in curves.values():
        check(search, base.optimizer, budget)
    check_workers(workers)
    # Only what was asked for: an option that a preset says may be the one that is searched.
    curves = {curve: replace(resolved(base), options=base.options) for curve, base in curves.items()}
    for base in curves.values():
        open_run(base, None, data_dir)  # a mistake is told here, once, rather than by every worker
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = opened(url or f"sqlite:///{out / 'tuning.db'}", out)
    searches = {
        curve: CurveSearch(base, begun(storage, f"{name}/{curve}", base), out / "runs", data_dir)
        for curve, base in curves.items()
    }
    counts = {curve: len(of_curve.losses()) for curve, of_curve in searches.items()}

    def count(curve: str) -> None:
        counts[curve] = len(searches[curve].losses())
        if told is not None:
            told(counts)

    with started_workers(workers) as team, quiet_heartbeats():
        for curve, of_curve in searches.items():
            count(curve)
            while points := due(search, of_curve.base.optimizer, budget, of_curve.losses()):
                of_curve.run(points, team, lambda curve=curve: count(curve))  # type: ignore[misc]
    return {curve: of_curve.results() for curve, of_curve in searches.items()}


class CurveSearch:
    """The search of one curve: a study of Optuna, and where its runs are."""

    def __init__(self, base: RunConfig, study: optuna.Study, runs: Path, data_dir: Path | None) -> None:
        self.base, self.study, self.runs, self.data_dir = base, study, runs, data_dir

    def losses(self) -> dict[Point, float]:
        """The points that are finished."""
        done = self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        return {point_of(trial): trial.value for trial in done if trial.value is not None}

    def results(self) -> dict[str, Any]:
        """The best point, and every point with its validation loss."""
        options = choices(self.base.optimizer)
        points = [{"lr": p.lr, **options[p.choice], "valid_loss": loss} for p, loss in self.losses().items()]
        points.sort(key=lambda point: point["valid_loss"])
        return {"best": points[0] if points else None, "trials": points}

    def run(self, points: Sequence[Point], team: Workers, told: Callable[[], None]) -> None:
        """Queue these points where they are not yet, and work until none is waiting."""
        optuna.storages.fail_stale_trials(self.study)
        at_hand = self.study.get_trials(deepcopy=False, states=[TrialState.WAITING, TrialState.RUNNING])
        known = [point_of(trial) for trial in at_hand if is_queued(trial)]
        for point in points:
            if point not in known:
                self.study.enqueue_trial(point._asdict())
        waiting = self.study.get_trials(deepcopy=False, states=[TrialState.WAITING])
        team.check_interrupt()
        if not waiting:  # all are at work elsewhere
            time.sleep(LOOK_AGAIN)
            return
        failures: list[BaseException] = []

        def objective(trial: optuna.Trial) -> float:
            if failures or team.stop.is_set():
                raise optuna.TrialPruned
            try:
                return self.loss_at(trial, team)
            except UserError as error:  # Optuna forgets those of its last threads
                failures.append(error)
                raise

        count, callbacks = len(waiting), [lambda *_: told()]
        self.study.optimize(objective, n_trials=count, n_jobs=team.count, callbacks=callbacks, catch=(UserError,))
        team.check_interrupt()
        if failures:
            raise failures[0]

    def loss_at(self, trial: optuna.Trial, team: Workers) -> float:
        """The validation loss of the point of a trial, at the end of its run."""
        if self.is_superfluous(trial.number):
            raise optuna.TrialPruned
        lr = trial.suggest_float("lr", 1e-12, 1e12, log=True)  # queued: only the range is declared here
        choice = trial.suggest_int("choice", 0, len(choices(self.base.optimizer)) - 1)
        config = configured(self.base, Point(lr, choice))
        done = team.finished(config, self.runs / folder_name(config), self.data_dir)
        loss: float = done.result["final"]["valid_loss"]
        return loss if math.isfinite(loss) else math.inf

    def is_superfluous(self, number: int) -> bool:
        """Was the same point queued before? Two machines that start at once both queue all that is due.

        Or is there no point? Another machine may have taken the last one since we looked.
        """
        trials = self.study.get_trials(deepcopy=False)
        if not is_queued(trials[number]):
            return True
        dead = (TrialState.FAIL, TrialState.PRUNED)
        earlier = [trial for trial in trials[:number] if is_queued(trial) and trial.state not in dead]
        return point_of(trials[number]) in [point_of(trial) for trial in earlier]


def begun(storage: RDBStorage, name: str, base: RunConfig) -> optuna.Study:
    """The study of that name, new or to be gone on with."""
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
    now, before = base.told(), study.user_attrs.get("base", base.told())
    changed = [key for key in now if now[key] != before.get(key) and key not in ("lr", "threads", "device")]
    if changed:
        raise UserError(
            f"the study {name} was begun with other settings ({changed[0]} was {before.get(changed[0])!r}, and is "
            f"{now[changed[0]]!r} now): choose another --name or --out"
        )
    study.set_user_attr("base", now)
    return study


def is_queued(trial: optuna.trial.FrozenTrial) -> bool:
    return "lr" in trial.system_attrs.get("fixed_params", trial.params)


def point_of(trial: optuna.trial.FrozenTrial) -> Point:
    values = trial.system_attrs.get("fixed_params", trial.params)
    return Point(float(f"{values['lr']:.3g}"), int(values["choice"]))


class OneClaimAtATime(RDBStorage):
    """SQLite would let two workers take the same waiting trial; databases with row locks need no help."""

    def __init__(self, url: str, lock: FileLock | None) -> None:
        super().__init__(url, heartbeat_interval=HEARTBEAT, grace_period=STALE)
        self.lock = lock

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        with self.lock or nullcontext():
            return super().set_trial_state_values(trial_id, state, values)


def opened(url: str, out: Path) -> RDBStorage:
    lock = FileLock(out / "claim.lock") if url.startswith("sqlite") else None
    try:
        with quiet_heartbeats():
            return OneClaimAtATime(url, lock)
    except Exception as error:  # whatever the database's driver raises
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot open the storage {without_password(url)}: {reason}") from error


def without_password(url: str) -> str:
    """The address as it may be shown.

    >>> without_password("postgresql://me:secret@host/studies")
    'postgresql://me:***@host/studies'
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)
