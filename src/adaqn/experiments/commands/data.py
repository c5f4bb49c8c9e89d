"""``adaqn data``: what is there, what can be fetched, whether it is intact."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

import typer

from adaqn.experiments.commands.helping import Command, Group, examples
from adaqn.experiments.commands.options import AsJson, DataDir
from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import content

data_app = typer.Typer(help="The data sets: list, download and verify them.", no_args_is_help=True, cls=Group)


@data_app.command("list", cls=Command, epilog=examples("data list"))
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets, and where their files are."""
    rows = [
        {"data": name, "file": file.path, "found": str(path) if (path := files.find(file, data_dir)) else None}
        for name, members in files.DATA_SETS.items()
        for file in members
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    name, file = (max(len(str(row[column])) for row in rows) for column in ("data", "file"))
    for row in rows:  # no table: it would cut paths short
        print(f"{row['data']:{name}}  {row['file']:{file}}  {row['found'] or 'not here: adaqn data download'}")


@data_app.command("download", cls=Command, epilog=examples("data download"))
def data_download(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all of them by default.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download missing files into the cache, checked by their sha256."""
    rows = []
    for name in names or files.DATA_SETS:
        for file in members_of(name):
            path = files.find(file, data_dir)
            if path is not None:
                files.read(file, data_dir)  # says so if it is not what it should be
            rows.append({"data": name, "file": file.path, "was_here": path is not None})
            rows[-1]["path"] = str(path or files.download(file))
            if not as_json:
                print(f"{file.path}: {'already' if path else 'now'} at {rows[-1]['path']}")
    if as_json:
        print(json.dumps(rows, indent=2))


@data_app.command("verify", cls=Command, epilog=examples("data verify"))
def data_verify(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare every file found with its sha256; exit code 1 if one differs."""
    rows: list[dict[str, Any]] = []
    for name, members in files.DATA_SETS.items():
        for file in members:
            path = files.find(file, data_dir)
            row: dict[str, Any] = {"data": name, "file": file.path, "state": "not here"}
            line = f"{file.path}: not here"
            if path is not None:
                actual = hashlib.sha256(content(path)).hexdigest()
                intact = actual == file.sha256
                row |= {"path": str(path), "sha256": actual, "state": "as expected" if intact else "wrong"}
                line = f"{path}: as expected" if intact else files.wrong_checksum(path, actual, file)
            rows.append(row)
            if not as_json:
                print(line)
    if as_json:
        print(json.dumps(rows, indent=2))
    raise typer.Exit(1 if any(row["state"] == "wrong" for row in rows) else 0)


def members_of(name: str) -> tuple[files.DataFile, ...]:
    if name not in files.DATA_SETS:
        raise UserError(f"no data set called {name!r}: give one of {', '.join(files.DATA_SETS)}")
    return files.DATA_SETS[name]
