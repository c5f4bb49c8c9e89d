"""``adaqn explain``: what happened in a run, and what to change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from adaqn import QuasiNewton
from adaqn.experiments.commands.options import AsJson
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE, entry
from adaqn.experiments.reading import is_there
from adaqn.experiments.training.cycles import kept_cycles, kept_iterations
from adaqn.experiments.training.folder import CONFIG, CYCLES, finished, stored_config
from adaqn.experiments.training.options import is_ours_for_whole
from adaqn.experiments.training.storage import json_text
from adaqn.explain.explanation import Explanation
from adaqn.explain.explanation import explain as explanation_of
from adaqn.explain.fullbatch import explain_whole
from adaqn.optim.removed import PLACES


def explain(
    folder: Annotated[Path, typer.Argument(help="Folder of a run with AdaQN or a related method.")],
    as_json: AsJson = False,
) -> None:
    """Explain what happened in the last cycles of a run, and what to change. The run may still be running."""
    about, found = explain_run(folder)
    if as_json:
        print(json_text({**about, **found.as_dict()}, indent=2))
        return
    print(in_flat_names(f"{folder}: {about['state']}\n{found}"))
    if not found.is_well and is_ours_for_whole(about["optimizer"]):
        print("(in adaqn train: --lr, --dtype, --resample; --option name=value for everything else)")
    elif not found.is_well:
        print("(in adaqn train: --lr, --monitor-size for the monitoring set; --option name=value for everything else)")


def in_flat_names(text: str) -> str:
    """Advice for a constructor as advice for the command line.

    >>> in_flat_names('use pairs=PairOptions(test="positive", eps=0.1)')
    'use --option curvature_test="positive" --option curvature_eps=0.1'
    """
    flat = {place: name for name, place in PLACES.items()}

    def options(found: re.Match[str]) -> str:
        fields = (field.partition("=") for field in found[2].split(", "))
        return " ".join(f"--option {flat.get((found[1], name), name)}={value}" for name, _, value in fields)

    return re.sub(r"\b(pairs|reject|storage)=(?:adaqn\.)?\w+\(([^()]+)\)", options, text)


def explain_run(folder: Path) -> tuple[dict[str, Any], Explanation]:
    """(Which run it is and how far, what is to be said about it)."""
    if not is_there(folder / CONFIG):
        raise UserError(f"there is no run in {folder}: a run is a folder with {CONFIG} in it")
    name = stored_config(folder).optimizer
    if not has_cycles(name):
        known = ", ".join(other for other in TABLE if has_cycles(other))
        raise UserError(f"the run in {folder} was made with {name}, which has no cycles to explain: only {known} have")
    if not is_there(folder / CYCLES):
        raise UserError(
            f"there is no {CYCLES} in {folder}: nothing has been measured yet, or the run was made by a version "
            "that did not write it"
        )
    state = "finished" if finished(folder) is not None else "not finished, as of its last evaluation or checkpoint"
    about = {"folder": str(folder), "optimizer": name, "state": state}
    if is_ours_for_whole(name):
        return about, explain_whole(kept_iterations(folder))
    return about, explanation_of(kept_cycles(folder))


def has_cycles(name: str) -> bool:
    """Is that optimizer of the family, or one of ours for whole gradients?"""
    chosen = entry(name)
    if is_ours_for_whole(name):
        return True
    kind = chosen.kind or chosen.make
    return isinstance(kind, type) and issubclass(kind, QuasiNewton)
