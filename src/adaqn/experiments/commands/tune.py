"""``adaqn tune``: the paper's grid search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from adaqn.experiments.commands.compare import parse_optimizers
from adaqn.experiments.commands.display import count_bars, screen
from adaqn.experiments.commands.options import AsJson, DataDir, run_options
from adaqn.experiments.errors import UserError
from adaqn.experiments.search import tune as tuning
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.options import check_schedule
from adaqn.experiments.training.storage import json_text, write_json


@run_options()
def tune(
    base: RunConfig,
    optimizers: Annotated[str, typer.Option(help="Names, separated by commas.")] = "adaqn,adagrad,adam",
    budget: Annotated[int, typer.Option(help="Number of runs for each optimizer.")] = 20,
    search: Annotated[
        str,
        typer.Option(
            help="grid: every step size with every L or betas, so the budget is a multiple of 4. staged: step sizes "
            "first, then L or betas at the best of them. lr: step sizes only. ladder: step sizes that move towards the "
            "best. time: ladder, with as many runs as fit into the time of BUDGET runs of Adam, or of the first "
            "optimizer."
        ),
    ] = "grid",
    workers: Annotated[int, typer.Option(help="Number of parallel runs; other terminals or machines may join.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the runs; several processes may share it.")] = Path("runs/tune"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """The paper's grid search: step sizes for all, L for AdaQN, betas for Adam; the same budget for each, resumable."""
    names = [optimizer for optimizer, lr in parse_optimizers(optimizers) if lr is None]
    if len(names) < len(optimizers.split(",")):
        raise UserError(f"the search chooses the step sizes: give names without step sizes, not {optimizers!r}")
    check_schedule(base, names)
    if not as_json:
        print(f"{budget} runs for each of {', '.join(names)}: {budget * len(names)} in all, {workers} at a time")
    with count_bars(names, budget, quiet=as_json) as told:
        found = tuning.tune(
            tuning.for_optimizers(base, names), budget, out, search=search, workers=workers, data_dir=data_dir,
            told=told,
        )  # fmt: skip
    write_json(out / "tuned.json", found)
    if as_json:
        print(json_text(found, indent=2))
        return
    table = Table("optimizer", "best lr", "with", "validation loss", "runs")
    for optimizer, entry in found.items():
        best = dict(entry["best"])
        loss, lr = best.pop("valid_loss"), best.pop("lr")
        others = ", ".join(f"{key}={value}" for key, value in best.items()) or "–"
        table.add_row(optimizer, f"{lr:.4g}", others, f"{loss:.4f}", str(len(entry["trials"])))
    screen().print(table)
