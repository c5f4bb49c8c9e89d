"""Pictures and tables of the results of a figure that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from adaqn.experiments.commands.display import loss_text, say, screen
from adaqn.experiments.commands.physics_figure import over
from adaqn.experiments.comparison.panels import Comparison, Curve
from adaqn.experiments.comparison.plots import draw_comparison
from adaqn.experiments.comparison.summary import summary_rows
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.kept import file_of, kept_curves, kept_rows
from adaqn.experiments.figures.sweep import draw_sweep, sweep_rows
from adaqn.experiments.reading import is_there
from adaqn.experiments.training.averages import AVERAGED
from adaqn.experiments.training.storage import json_text, write_json


def home(spec: Comparison) -> str:
    """The folder of its kept results."""
    return spec.runs_of or spec.name


def draw_kept(spec: Comparison, folder: Path, stem: Path, scale: str, as_json: bool, *, needed: bool) -> bool:
    """Picture and table of what is kept; is there any?"""
    curves = [curve for panel in spec.panels for curve in kept_curves(panel, folder / home(spec))]
    there = [curve for curve in curves if curve.runs]
    below = subtitle(scale, curves)
    if not there:
        if needed:
            where = folder / home(spec)
            raise UserError(f"there are no results of {spec.name} in {where}: run it first, or give --results")
        if as_json and not needed:
            print(json_text({"rows": [], "figures": []}, indent=2))
        return False
    if spec.sweep is not None:
        rows = sweep_rows(there)
        files = draw_sweep(spec, rows, stem, below)
    else:
        rows = summary_rows(there)
        begun = tuple(panel for panel in spec.panels if any(curve.panel.cell == panel.cell for curve in there))
        shown = [curve for curve in curves if curve.panel in begun]
        if others := [panel.title for panel in spec.panels if panel not in begun]:
            below += f"; not run: {'; '.join(others)}"
        files = draw_comparison(replace(spec, panels=begun), shown, stem, below, phone=True)
    write_json(stem.with_suffix(".json"), rows)
    tell_drawn(spec, rows, files, as_json)
    nothing = {
        panel.title: [c.variant.label for c in curves if c.panel.cell == panel.cell and not c.runs]
        for panel in spec.panels
    }
    said = [f"{title} ({', '.join(names)})" for title, names in nothing.items() if names]
    if said:
        say("nothing yet of " + "; ".join(said), as_json)
    return True


def draw_table(spec: Comparison, folder: Path, stem: Path, scale: str, as_json: bool) -> bool:
    """A sweep from the table beside its picture, where nothing else is kept; was it?"""
    table = stem.with_suffix(".json")
    kept = any(is_there(file_of(panel, folder / home(spec))) for panel in spec.panels)
    if spec.sweep is None or kept or not is_there(table):
        return False
    rows = kept_rows(table)
    files = draw_sweep(spec, rows, stem, f"{scale} scale, {over(max(row['seeds'] for row in rows))}")
    tell_drawn(spec, rows, files, as_json)
    return True


def tell_drawn(spec: Comparison, rows: list[dict[str, Any]], files: list[Path], as_json: bool) -> None:
    """In the terminal, or for other programs."""
    if as_json:
        print(json_text({"rows": rows, "figures": [str(file) for file in files]}, indent=2))
        return
    print_rows(rows, spec)
    say("figures: " + ", ".join(str(file) for file in files), as_json)


def subtitle(scale: str, curves: list[Curve]) -> str:
    """Over how many seeds, and how much of it there is."""
    counts = [len({run.result["config"]["seed"] for run in curve.finished}) for curve in curves]
    most, up_to = max(counts), "" if len(set(counts)) == 1 else "up to "
    seeds = "one seed" if most <= 1 else f"mean and range of {up_to}{most} seeds"
    whole = sum(not curve.note for curve in curves)
    return f"{scale} scale, {seeds}" + (
        "" if whole == len(curves) else f"; {whole} of {len(curves)} curves are complete"
    )


def print_rows(rows: list[dict[str, object]], spec: Comparison) -> None:
    """The table in the terminal: mean and range at the end."""
    table = Table(title=spec.title)
    for column in (
        "panel", "curve", "lr", "options", "test loss", "range", "valid loss", "at lowest valid", "gradients",
        "seconds", "stored/ skipped/ rejected", "missing",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("panel", "curve", "options", "missing") else "right")
    for row in rows:
        prefix = AVERAGED if row.get("judged_at") == "average" else ""
        test, valid, cycles = row[f"{prefix}test_loss"], row[f"{prefix}valid_loss"], row.get("cycles")
        assert isinstance(test, dict)
        assert isinstance(valid, dict)
        options, passes, stopped = row["options"], row.get("passes"), row.get("stopped_test_loss")
        assert isinstance(options, dict)
        table.add_row(
            str(row["panel"]), f"{row['curve']}{', average' if prefix else ''}", f"{row['lr']:g}",
            ", ".join(f"{name}={value}" for name, value in options.items()) or "–",
            loss_text(test["mean"]), f"{loss_text(test['low'])} to {loss_text(test['high'])}", loss_text(valid["mean"]),
            loss_text(stopped["mean"]) if isinstance(stopped, dict) else "–",
            f"{passes['mean']:.0f}" if isinstance(passes, dict) else "–", str(row["seconds"]),
            "/".join(str(count) for count in cycles.values()) if isinstance(cycles, dict) else "–",
            str(row.get("missing", "–")),
        )  # fmt: skip
    screen().print(table)
