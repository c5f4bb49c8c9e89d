"""What the report says about runs that differ only in their seed: label, curves, numbers, command."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from adaqn.experiments.comparison.headline import Contender
from adaqn.experiments.comparison.look import colour
from adaqn.experiments.comparison.summary import VERDICTS, over_seeds, spread
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.options import NAMED, command, own_options

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    config: RunConfig
    runs: list[Finished]

    @property
    def seeds(self) -> list[int]:
        return [run.result["config"]["seed"] for run in self.runs]

    @property
    def lr(self) -> float | None:
        """The step size used: the optimizer's own where none was given."""
        known = TABLE.get(self.config.optimizer)
        return known.lr if self.config.lr is None and known else self.config.lr

    @property
    def name(self) -> str:
        return TABLE[self.config.optimizer].label if self.config.optimizer in TABLE else self.config.optimizer

    @property
    def sha256(self) -> str:
        return str(self.runs[0].result["data_sha256"])


def describe(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The groups of one panel, best first. Those of one colour differ in their dashes."""
    rows = []
    used: dict[str, int] = {}
    for group in sorted(groups, key=lambda g: (not math.isfinite(_final(g)), _final(g))):
        shade = colour(group.config.optimizer)
        used[shade] = used.get(shade, -1) + 1
        details = distinguishing(group, groups)
        lr = [] if group.lr is None else [f"lr {group.lr:g}"]
        rows.append(
            {
                "optimizer": group.config.optimizer,
                "name": group.name,
                "label": f"{group.name} ({', '.join(lr + details)})",
                "family": ", ".join([group.name, *details]),
                "details": ", ".join(details),
                "colour": shade,
                "dash": DASHES[used[shade] % len(DASHES)],
                "lr": group.lr,
                "seeds": group.seeds,
                "sha256": group.sha256[:12],
                "command": command(group.config, group.seeds),
                "settings": settings(group),
                **results(group),
                **curves(group),
            }
        )
    return rows


def distinguishing(group: Group, others: Sequence[Group]) -> list[str]:
    """The options of the optimizer, and every setting in which the panel's groups differ."""
    own = own_options(group.config.optimizer, group.config.options)
    found = [f"{name}={value}" for name, value in sorted(own.items())]
    for name in (f.name for f in fields(RunConfig) if f.name not in NAMED):
        if len({getattr(other.config, name) for other in others}) > 1:
            found.append(f"{name}={getattr(group.config, name)}")
    if len({other.sha256 for other in others}) > 1:
        found.append(f"data {group.sha256[:6]}")
    return found


def settings(group: Group) -> dict[str, str]:
    """Everything the run was asked for by name, as text: what a reader compares two runs by."""
    values = {**group.config.to_json(), "lr": group.lr, "seed": ", ".join(map(str, group.seeds))}
    options = values.pop("options")
    named = {**values, **{f"option {name}": value for name, value in sorted(options.items())}}
    return {name: "–" if value is None else str(value) for name, value in named.items()}


def contender(group: Group) -> Contender:
    return Contender(group.config.optimizer, group.name, group.runs)


def _final(group: Group) -> float:
    return spread([run.result["final"]["test_loss"] for run in group.runs])["mean"]


def results(group: Group) -> dict[str, Any]:
    """The numbers of the table: means over seeds, and the spread between the best and the worst."""

    def summary(value: Callable[[Finished], Any]) -> dict[str, float]:
        return spread([value(run) for run in group.runs])

    averaged = all("averaged_test_loss" in run.result["final"] for run in group.runs)
    return {
        "test": summary(lambda run: run.result["final"]["test_loss"]),
        "averaged": summary(lambda run: run.result["final"]["averaged_test_loss"]) if averaged else None,
        "valid": summary(lambda run: run.result["final"]["valid_loss"]),
        "best_valid": summary(lambda run: run.result["best"]["valid_loss"]),
        "seconds": summary(lambda run: run.result["seconds"]),
        "steps": group.runs[0].result["steps"],
        **{name: group.runs[0].result.get(name) for name in ("optimizer_bytes", "parameter_bytes", "parameters")},
    }


def curves(group: Group) -> dict[str, Any]:
    """Loss, memory and verdicts at every evaluation; the latter two only where the optimizer has them."""
    length = min(len(run.metrics) for run in group.runs)
    records = [run.metrics[:length] for run in group.runs]

    def column(key: str, start: int = 0) -> dict[str, list[float]]:
        return over_seeds([[record.get(key) for record in run[start:]] for run in records])

    drawn: dict[str, Any] = {
        "epoch": column("epoch")["mean"],
        "clock": column("seconds")["mean"],
        "loss": column("test_loss"),
        "error": None,
        "memory": None,
        "verdicts": None,
    }
    if all("test_error" in record for run in records for record in run):
        drawn["error"] = column("test_error")
    if all("average_memory" in record for run in records for record in run):
        drawn["memory"] = column("average_memory", 1)  # nothing was averaged before the first step
    if all(name in record for run in records for record in run for name in VERDICTS):
        drawn["verdicts"] = {
            name: over_seeds([_differences([record[name] for record in run]) for run in records])["mean"]
            for name in VERDICTS
        }
        drawn["verdicts"]["kept"] = over_seeds([_differences(_kept(run)) for run in records])["mean"]
    return drawn


def _kept(records: Sequence[dict[str, Any]]) -> list[float]:
    """Cycles that were accepted by a method without pairs; of one with pairs they are stored or skipped."""
    pairs = any(record["stored"] or record["skipped"] for record in records)
    return [0 if pairs else record.get("cycles", 0) - record["rejected"] for record in records]


def _differences(totals: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(totals)]
