"""The results of a method on a cell: one small file that grows run by run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaqn.experiments.comparison.panels import Panel, Variant
from adaqn.experiments.comparison.summary import VERDICTS
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.reading import is_there, read_json
from adaqn.experiments.schema import LEFT, count, loss, positive, record, several, text
from adaqn.experiments.search.points import USUAL, Point, due, rung_of
from adaqn.experiments.study.regimes import InRegime
from adaqn.experiments.training.config import RunConfig, renamed
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.storage import write_sealed
from adaqn.experiments.training.whole_settings import is_whole

FORMAT = 1
LEFT_OUT = ("lr", "seed", "threads", "device", "optimizer", "options")
TRACES = ("step", "valid_loss", "test_loss", "train_loss", "seconds")
ERRORS = "test_error"
"""A trace of whole-batch tasks alone."""
AVERAGES = ("averaged_valid_loss", "averaged_test_loss")
"""Traces of runs with an average."""
KEPT = 40
"""Points of a trace that were measured at every hundredth of a run: the files are committed."""
AT_THE_END = (
    "test_error",
    "valid_loss", "test_loss", "test_accuracy", "averaged_valid_loss", "averaged_test_loss", "averaged_test_accuracy",
    "stored", "skipped", "rejected", "nonfinite", "step_multiplier",
)  # fmt: skip


STEPS, LOSSES = several(count, 1), several(loss, 1)
RUN = record(
    {
        **{"lr": positive, "seed": count, "seconds": loss, "unit": text},
        "end": record({"valid_loss": loss, "test_loss": loss}, dict.fromkeys(VERDICTS, count), rest=loss),
        "trace": record({**dict.fromkeys(TRACES, LOSSES), "step": STEPS}, rest=LOSSES),
    },
    {"parameters": count, "stopped_at": count, "data_sha256": text},
)
RESULTS = record({"runs": several(RUN)})
"""The file of a row."""


class Row:
    """What is known of one method on one cell."""

    def __init__(self, panel: Panel, variant: Variant, folder: Path) -> None:
        self.panel, self.variant, self.method = panel, variant, variant.optimizer
        self.path = folder / panel.name / f"{variant.name}.json"
        self.regime = variant.regime if isinstance(variant, InRegime) else ""
        self.prefix = variant.prefix
        """Of the losses by which it is judged."""
        self.base = resolved(variant.on(panel.base))
        assert self.base.lr is not None
        self.default: float = self.base.lr
        self.runs: list[dict[str, Any]] = self._read()

    def settings(self) -> dict[str, Any]:
        """What all runs of the row have in common."""
        values = self.base.to_json()
        return {
            "format": FORMAT, "cell": self.panel.name, "method": self.method, "default_lr": self.default,
            **({"regime": self.regime} if self.regime else {}),
            "options": values["options"],
            "task": {k: v for k, v in self.base.told().items() if k not in LEFT_OUT},
        }  # fmt: skip

    def _read(self) -> list[dict[str, Any]]:
        if not is_there(self.path):
            return []
        said = read_json(self.path, RESULTS)
        if isinstance(said.get("options"), dict):
            said["options"] = renamed(said["options"], "auto", "paired")
        for name, value in self.settings().items():
            if said.get(name) != value:
                raise UserError(
                    f"{self.path} was made with another {name} ({said.get(name)!r}, and now it is {value!r}): delete "
                    "it to run that row anew, or give another --results"
                )
        for run in said["runs"]:
            if len({len(trace) for trace in run["trace"].values()}) != 1:
                raise UserError(f"{self.path} is damaged: the traces of a run differ in length; {LEFT}")
            if self.prefix and not {*AVERAGES} <= {*run["end"]} & {*run["trace"]}:
                raise UserError(f"{self.path} is damaged: a run has no losses at the average; {LEFT}")
        return list(said["runs"])

    def add(self, done: Finished) -> None:
        """Take a finished run in, and write the file."""
        config, final = done.result["config"], done.result["final"]
        run = {
            "lr": config["lr"],
            "seed": config["seed"],
            "seconds": done.result["seconds"],
            "parameters": done.result["parameters"],
            "unit": done.result["unit"],
            "data_sha256": done.result["data_sha256"],
            "end": {name: _short(final[name]) for name in AT_THE_END if name in final},
            "trace": self._trace(done.metrics),
        }
        if "stopped_at" in done.result:
            run["stopped_at"] = done.result["stopped_at"]
        self.runs = [known for known in self.runs if (known["lr"], known["seed"]) != (run["lr"], run["seed"])]
        self.runs = sorted([*self.runs, run], key=lambda known: (known["lr"], known["seed"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(self.path, {**self.settings(), "runs": self.runs})

    def _trace(self, metrics: list[dict[str, Any]]) -> dict[str, list[Any]]:
        whole = is_whole(self.base.task)
        kept = thinned(metrics, KEPT) if whole else metrics
        more = (ERRORS,) if whole else tuple(name for name in AVERAGES if name in metrics[0])
        names = (*TRACES, *more)
        return {name: [_short(record.get(name)) for record in kept] for name in names}

    # ------------------------------------------------------------------ what is known

    def find(self, lr: float, seed: int) -> dict[str, Any] | None:
        return next((run for run in self.runs if run["lr"] == lr and run["seed"] == seed), None)

    def tried(self) -> dict[Point, float]:
        """Step size → judged validation loss of seed 0; those that are on the ladder, whatever else was run."""
        usual = USUAL.get(self.method, 0)
        return {
            Point(run["lr"], usual): self.end(run, "valid_loss")
            for run in self.runs
            if run["seed"] == 0 and rung_of(self.default, run["lr"]) is not None
        }

    def end(self, run: dict[str, Any], name: str) -> float:
        """What it is judged by: of the average where that is so; infinite where it is not finite."""
        return number(run["end"].get(f"{self.prefix}{name}"))

    def best_lr(self) -> float | None:
        """Chosen on the validation split with seed 0; of equals, the smallest step."""
        tried = self.tried()
        return min(tried, key=lambda point: (tried[point], point.lr)).lr if tried else None

    @property
    def best_is_at_end(self) -> bool:
        """Is the best step size the smallest or the largest of those tried?"""
        sizes = [point.lr for point in self.tried()]
        return self.best_lr() in (min(sizes), max(sizes))

    def due(self, seeds: int, default_first: bool = False) -> list[RunConfig]:
        """The runs that may be made now: step sizes first, then the other seeds at the best and at the default one.

        With ``default_first`` all seeds at the default step size come before the search.
        """
        if default_first and self.untuned and (configs := self._missing([self.default], seeds)):
            return configs
        wanted = [(point.lr, 0) for point in due(self.panel.search, self.method, self.panel.budget, self.tried())]
        if not wanted:
            best = self.best_lr()
            assert best is not None
            return self._missing([best, self.default] if self.untuned else [best], seeds)
        return [replace(self.base, lr=lr, seed=seed) for lr, seed in wanted if self.find(lr, seed) is None]

    def _missing(self, sizes: list[float], seeds: int) -> list[RunConfig]:
        return [
            replace(self.base, lr=lr, seed=seed)
            for lr in dict.fromkeys(sizes)
            for seed in range(seeds)
            if self.find(lr, seed) is None
        ]

    @property
    def untuned(self) -> bool:
        """Is the default step size run with every seed too? Without a schedule, by the methods people try first."""
        known = self.method in ("adamw", "soap") or self.method.startswith("adaqn")
        return bool(self.prefix) and known

    def at(self, lr: float | None, seeds: int) -> list[dict[str, Any]]:
        """The runs at that step size, if all seeds are there."""
        found = [self.find(lr, seed) for seed in range(seeds)] if lr is not None else []
        return [run for run in found if run is not None] if all(run is not None for run in found) else []

    def remaining(self, seeds: int) -> int:
        """How many runs are left, at most."""
        tried, points = len(self.tried()), 1 if entry(self.method).whole else self.panel.budget
        later = (seeds - 1) * (2 if self.untuned else 1)
        return points - tried + later if tried < points else len(self.due(seeds))


def thinned(metrics: list[Any], count: int) -> list[Any]:
    """About so many of them, equally spaced, with the first and the last.

    >>> thinned(list(range(11)), 5)
    [0, 3, 6, 9, 10]
    """
    every = max(1, -(-len(metrics) // count))
    return [*metrics[:-1:every], metrics[-1]]


def number(value: float | None) -> float:
    """A loss that was not finite is null in the file."""
    return math.inf if value is None or not math.isfinite(value) else value


def _short(value: Any) -> Any:
    """Six digits are enough."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
