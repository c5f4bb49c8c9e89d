"""The paper's grid search on Optuna: resumable, shared by several workers, the same budget for every optimizer."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing as mp
import re
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from adaqn.experiments.config import RunConfig
from adaqn.experiments.errors import UserError
from adaqn.experiments.interrupts import interrupts_noted
from adaqn.experiments.optimizers import entry, resolved
from adaqn.experiments.runner import folder_name, run_one
from adaqn.experiments.storage import warnings_kept
from adaqn.experiments.training import Progress, Run

Point = dict[str, float]
Curves = dict[str, RunConfig]
"""What is tuned, by name: each an optimizer, perhaps with options of its own."""

# What the paper tunes beside the step size, as choices by number: Optuna stores numbers best.
_CYCLE_LENGTHS = [{"cycle_length": length} for length in (2, 5, 10, 20)]
SECOND: dict[str, list[dict[str, Any]]] = {
    "adaqn": _CYCLE_LENGTHS,
    "adaqn-paper": _CYCLE_LENGTHS,
    "adam": [{"betas": list(betas)} for betas in itertools.product((0.9, 0.95), (0.99, 0.999))],
}
USUAL = {"adaqn": 1, "adaqn-paper": 1, "adam": 1}
"""The choice that is the method's own default: L = 5, betas = (0.9, 0.999)."""
DECADES = 1.0
"""The grid of step sizes reaches this far above and below the optimizer's own default."""
HEARTBEAT, STALE = 60, 600
"""Seconds between two signs of life of a worker, and after how many without one its point is run again."""
ASK_EVERY = 5.0
"""Seconds between two questions to the database about how far the workers are."""
SEARCHES = ("grid", "staged", "lr")


def step_sizes(optimizer: str, count: int, decades: float = DECADES) -> list[float]:
    """In equal ratios around the optimizer's default, to three digits."""
    exponents = [0.0] if count == 1 else [decades * (2 * i / (count - 1) - 1) for i in range(count)]
    return [float(f"{entry(optimizer).lr * 10**e:.3g}") for e in exponents]


def grid(optimizer: str, budget: int, search: str = "grid") -> list[Point]:
    """The points to begin with. ``"grid"``: every step size with every other choice, ``budget`` in all. ``"staged"``:
    the step sizes with the usual choice; the other choices follow at the best of them, ``budget`` in all too.
    ``"lr"``: step sizes alone.

    >>> [point["lr"] for point in grid("sgd", 3)]
    [0.01, 0.1, 1.0]
    >>> len(grid("adaqn", 9, "staged"))
    6
    """
    if search not in SEARCHES:
        raise UserError(f"no search called {search!r}: give one of {', '.join(SEARCHES)}")
    second = 1 if search == "lr" else len(SECOND.get(optimizer, [{}]))
    if search != "grid":
        if budget < second:
            raise UserError(f"the budget of {optimizer} must be at least {second}, its choices beside lr; got {budget}")
        usual = USUAL.get(optimizer, 0)
        return [{"lr": lr, "choice": usual} for lr in step_sizes(optimizer, budget - second + 1)]
    if budget < 1 or budget % second:
        raise UserError(
            f"the budget of {optimizer} must be a multiple of {second}, its choices beside lr; got {budget}"
        )
    return [{"lr": lr, "choice": c} for lr in step_sizes(optimizer, budget // second) for c in range(second)]


def second_stage(optimizer: str, lr: float) -> list[Point]:
    """The choices that were not tried yet, at one step size."""
    usual = USUAL.get(optimizer, 0)
    return [{"lr": lr, "choice": c} for c in range(len(SECOND.get(optimizer, [{}]))) if c != usual]


def configured(base: RunConfig, point: Point) -> RunConfig:
    """The run of a point of the grid."""
    choice = SECOND.get(base.optimizer, [{}])[int(point["choice"])]
    return replace(base, lr=point["lr"], options={**choice, **base.options})


def for_optimizers(base: RunConfig, names: Sequence[str]) -> Curves:
    """The same run for several optimizers."""
    return {name: replace(base, optimizer=name) for name in names}


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
    told: Callable[[dict[str, int]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run the whole search; returns for each curve its best point by validation loss, and all points."""
    points = {curve: grid(base.optimizer, budget, search) for curve, base in curves.items()}  # tells of a wrong budget
    if workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    # Only what was asked for: an option that a preset says may be the one that is searched.
    curves = {curve: replace(resolved(base), options=base.options) for curve, base in curves.items()}
    for base in curves.values():
        Run(base, None, data_dir)  # a mistake is told here, once, rather than by every worker
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from error
    url = url or f"sqlite:///{out / 'tuning.db'}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    prepare(curves, points, url, name, out)
    drain(curves, url, name, out, workers, data_dir, told)
    if search == "staged":
        while running(curves, url, name):  # elsewhere: which step size is best is not known yet
            time.sleep(1.0)
            prepare(curves, points, url, name, out)
            drain(curves, url, name, out, workers, data_dir, told)
        found = results(curves, url, name)
        others = {
            curve: second_stage(base.optimizer, _best_step_size(base.optimizer, found[curve]["trials"]))
            for curve, base in curves.items()
        }
        prepare(curves, others, url, name, out)
        drain(curves, url, name, out, workers, data_dir, told)
    return results(curves, url, name)


def drain(
    curves: Curves,
    url: str,
    name: str,
    out: Path,
    workers: int,
    data_dir: Path | None,
    told: Callable[[dict[str, int]], None] | None,
) -> None:
    """Work until no point is waiting, in processes that save where they are when interrupted."""
    context = mp.get_context("spawn")
    stop = context.Event()
    arguments = ({curve: base.to_json() for curve, base in curves.items()}, url, name, out, data_dir, stop)
    processes = [context.Process(target=work, args=arguments, daemon=True) for _ in range(workers)]
    with interrupts_noted() as interrupted:
        for process in processes:
            process.start()
        asked = -ASK_EVERY
        while alive := [process for process in processes if process.is_alive()]:
            if interrupted.is_set():
                stop.set()
            elif told is not None and time.monotonic() - asked > ASK_EVERY:
                told(finished_counts(curves, url, name))
                asked = time.monotonic()
            alive[0].join(0.5)
        if told is not None:
            told(finished_counts(curves, url, name))
    if interrupted.is_set():
        raise KeyboardInterrupt
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise UserError(f"{len(failed)} of {workers} workers failed; run the same command again to go on")


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


def _best_step_size(optimizer: str, trials: list[dict[str, Any]]) -> float:
    usual = SECOND.get(optimizer, [{}])[USUAL.get(optimizer, 0)]
    first = [trial for trial in trials if all(trial[key] == value for key, value in usual.items())]
    lr: float = min(first, key=lambda trial: trial["valid_loss"])["lr"]
    return lr


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.get("choice") == b.get("choice") and math.isclose(a.get("lr", -2.0), b.get("lr", -1.0), rel_tol=1e-9)
