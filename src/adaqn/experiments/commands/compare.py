"""Several optimizers on one task, with everything else equal."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaqn.experiments.commands.display import progress_bars
from adaqn.experiments.comparison.plots import comparison
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.parallel import run_all
from adaqn.experiments.training.storage import write_json

Groups = dict[str, list[Finished]]


def parse_optimizers(text: str) -> list[tuple[str, float | None]]:
    """Names with commas between, each with an optional step size.

    >>> parse_optimizers("adaqn:0.01,adam")
    [('adaqn', 0.01), ('adam', None)]
    """
    chosen = []
    for part in text.split(","):
        name, _, lr = part.strip().partition(":")
        entry(name)
        try:
            chosen.append((name, float(lr) if lr else None))
        except ValueError:
            raise UserError(f"{part.strip()!r}: what follows the colon must be a step size") from None
        if chosen.count(chosen[-1]) > 1:
            raise UserError(f"{part.strip()!r} is given twice: --seeds runs an optimizer several times")
    return chosen


def compare_optimizers(
    base: RunConfig, optimizers: str, seeds: int, out: Path, workers: int, data_dir: Path | None, *, quiet: bool = False
) -> tuple[Groups, list[Path]]:
    """Run them all; returns label → its runs, and the figures."""
    if seeds < 1 or workers < 1:
        raise UserError(f"seeds and workers must be at least 1, got {seeds} and {workers}")
    chosen = parse_optimizers(optimizers)
    configs = [
        replace(base, optimizer=name, lr=entry(name).lr if lr is None else lr, seed=seed)
        for name, lr in chosen
        for seed in range(seeds)
    ]
    for config in configs:
        config.complete()
    labels = [f"{c.optimizer}" + (f" seed {c.seed}" if seeds > 1 else "") for c in configs]
    with progress_bars(labels, quiet=quiet) as told:
        done = run_all(configs, out / "runs", workers, data_dir, told)
    groups: Groups = {}
    for config, run in zip(configs, done, strict=True):
        groups.setdefault(f"{entry(config.optimizer).label} (lr {config.lr!r})", []).append(run)
    figures = comparison(groups, out / "curves", f"{base.task} · {base.data} · {base.model}")
    write_json(out / "summary.json", summary(groups))
    return groups, figures


def summary(groups: Groups) -> list[dict[str, Any]]:
    """One row per optimizer, best first: mean and spread over seeds of the final test loss."""
    rows = []
    for label, runs in groups.items():
        finals = [run.result["final"] for run in runs]
        test = [final["test_loss"] for final in finals]
        cycles = "–"
        if "stored" in finals[0]:
            cycles = "/".join(str(sum(f[name] for f in finals)) for name in ("stored", "skipped", "rejected"))
        rows.append(
            {
                "optimizer": label.rsplit(" (lr ", 1)[0],
                "lr": runs[0].result["config"]["lr"],
                "test": round(statistics.fmean(test), 4),
                "spread": round(max(test) - min(test), 4) if len(test) > 1 else "–",
                "valid": round(statistics.fmean(final["valid_loss"] for final in finals), 4),
                "seconds": round(statistics.fmean(run.result["seconds"] for run in runs), 1),
                "cycles": cycles,
                "seeds": len(runs),
                "unit": runs[0].result["unit"],
                "data_sha256": runs[0].result["data_sha256"],
            }
        )
    return sorted(rows, key=lambda row: (row["test"] != row["test"], row["test"]))
