"""``adaqn train``: one run."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adaqn.experiments.commands.display import progress_bars
from adaqn.experiments.commands.options import AsJson, DataDir, run_options
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.reading import is_there
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, folder_name, stored_config
from adaqn.experiments.training.options import check_schedule, parse_options, resolved
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.storage import json_text
from adaqn.experiments.training.team import restarts, team


@run_options()
def train(
    context: typer.Context,
    base: RunConfig,
    optimizer: Annotated[str, typer.Option(help="One of: " + ", ".join(TABLE))] = "adaqn",
    lr: Annotated[float | None, typer.Option(help="Step size; by default the optimizer's own.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="More options, name=value; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train one model with one optimizer. --resume continues a killed run bit-for-bit.

    Under torchrun each process takes its share of every batch.
    """
    given = replace(base, optimizer=optimizer, lr=lr, options=parse_options(option))
    folder = out or Path("runs") / folder_name(given)
    is_begun = is_there(folder / CONFIG)
    if resume or (restarts() and is_begun):
        if not is_begun:
            raise UserError(f"there is no run in {folder} to resume")
        stored = stored_config(folder)
        refuse_changes(context, given, stored, folder)
        given = stored
    elif is_begun:
        raise UserError(f"{folder} already holds a run: --resume continues it, or choose another folder with --out")
    else:
        check_schedule(given, [optimizer])
    with (
        team(given.device) as processes,
        progress_bars([given.optimizer], quiet=as_json or not processes.writes) as told,
    ):
        done = run_one(given, folder, data_dir, lambda progress: told(0, progress), processes)
    if not processes.writes:
        return
    if as_json:
        print(json_text({"folder": str(folder), **done.result}, indent=2))
        return
    Console().print(f"{given.optimizer}: {said(done.result)}; everything is in {folder}", highlight=False, markup=False)


def said(result: dict[str, Any]) -> str:
    """How it ended, in one line."""
    final, seconds = result["final"], f"{result['seconds']:.1f} s"
    if "test_error" not in final:
        average = f" ({final['averaged_test_loss']:.4f} at the average)" if "averaged_test_loss" in final else ""
        loss = f"test loss {final['test_loss']:.4f} {result['unit']}{average}"
        return f"{loss} after {result['steps']} steps and {seconds}"
    loss, error = f"loss {final['test_loss']:.3e} ({result['unit']})", f"error {final['test_error']:.3e}"
    return f"{loss}, {error} after {result.get('stopped_at', result['steps'])} evaluations and {seconds}"


def refuse_changes(context: typer.Context, given: RunConfig, stored: RunConfig, folder: Path) -> None:
    """A resumed run is the run that it was; what contradicts it on the command line is told."""
    if given.options:  # as written out: a preset may say the same
        given = replace(given, options=resolved(replace(stored, options=given.options)).options)
    for name in (field.name for field in fields(RunConfig)):
        asked = "option" if name == "options" else name
        source = context.get_parameter_source(asked)
        if source is not None and source.name == "COMMANDLINE" and getattr(given, name) != getattr(stored, name):
            raise UserError(
                f"the run in {folder} has {name} = {getattr(stored, name)!r}, not {getattr(given, name)!r}: a resumed "
                "run cannot be changed; start another with --out"
            )
