"""What the demonstration leaves behind: a picture of the curves, a short report, a table in the terminal."""

from __future__ import annotations

import io
import math
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from adaqn import AdaQN
from demo_training import BATCH, GRIDS, LAYERS, MONITORED, SEQUENCE, UNITS, Data, Run

COLOURS = {"AdaQN": "#0b57c4", "Adagrad": "#7a7a7a", "Adam": "#d1570b"}
INK, FAINT = "#222222", "#5c5c5c"
HEADINGS = ("Optimizer", "lr", "Train", "Validation", "Test", "Seconds")
UNIT = "Losses in nats (and bits) per character."


def write_atomically(path: Path, content: bytes) -> None:
    """The whole file or none of it, whatever happens in between."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# ---------------------------------------------------------------------- the picture


def draw(runs: list[Run], data: Data, seed: int) -> bytes:
    """Validation loss over steps and over seconds, as PNG."""
    style = {"font.family": "DejaVu Sans", "font.size": 10.5, "text.color": INK, "axes.labelcolor": INK}
    with mpl.rc_context(style):
        figure = Figure(figsize=(12, 5.2), dpi=160, facecolor="white")
        left, right = figure.subplots(1, 2, sharey=True)
        figure.subplots_adjust(left=0.066, right=0.885, top=0.82, bottom=0.12, wspace=0.31)
        low, high = visible_range(runs)
        left.set_ylim(low, high)
        for axes, label in ((left, "steps"), (right, "seconds of training (evaluation not counted)")):
            plot_curves(axes, runs, over_steps=axes is left)
            axes.set_xlabel(label, labelpad=7)
            axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
            axes.tick_params(length=0, colors=FAINT)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.spines["bottom"].set_color("#bbbbbb")
        left.set_ylabel("validation loss, nats per character", labelpad=8)
        figure.text(0.022, 0.93, "Learning to write Python's documentation", fontsize=16, fontweight="bold")
        subtitle = (
            f"{LAYERS} × {UNITS} tanh RNN on {data.characters / 1000:,.0f} k characters. Same initial weights and "
            f"batches for all; each with its best step size of five; seed {seed}."
        )
        figure.text(0.022, 0.875, subtitle, color=FAINT)
        png = io.BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


def visible_range(runs: list[Run]) -> tuple[float, float]:
    """Room for all that happens after the first drop, which would flatten the rest."""
    values = [p.validation for run in runs for p in run.points if math.isfinite(p.validation)]
    later = [p.validation for run in runs for p in run.points if p.step >= 0.05 * run.steps and p.step > 0]
    low, high = min(values), max([v for v in later if math.isfinite(v)], default=max(values))
    room = max(high - low, 0.1)
    return low - 0.07 * room, high + 0.12 * room


def plot_curves(axes: Axes, runs: list[Run], *, over_steps: bool) -> None:
    """Lines with their names and final values at the ends."""
    ends = []
    for run in runs:
        x = [p.step if over_steps else p.seconds for p in run.points]
        y = [p.validation for p in run.points]
        front = 3 if run.name == "AdaQN" else 2
        axes.plot(x, y, color=COLOURS[run.name], linewidth=2.2, solid_capstyle="round", zorder=front)
        axes.plot(x[-1], y[-1], "o", color=COLOURS[run.name], markersize=5.5, zorder=front)
        ends.append((y[-1], x[-1], run))
    axes.set_xlim(0, max(x for _, x, _ in ends) * 1.015)
    low, high = axes.get_ylim()
    place = -math.inf
    for y, x, run in sorted(ends, key=lambda end: end[0]):
        place = max(y, place + 0.052 * (high - low))  # labels never overlap
        axes.annotate(
            f"{run.name} {y:.3f}" if over_steps else f"{run.name} {run.seconds:.0f} s",
            (x, y),
            xytext=(10 if over_steps else 9, (place - y) / (high - low) * axes.bbox.height * 72 / axes.figure.dpi),
            textcoords="offset points",
            color=COLOURS[run.name],
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )


# ---------------------------------------------------------------------- the numbers


def rows(runs: list[Run]) -> list[tuple[str, ...]]:
    """One row of text for each run, under HEADINGS."""
    table = []
    for run in runs:
        losses = [f"{loss:.3f} ({loss / math.log(2):.3f})" for loss in run.final_losses()]
        table.append((run.name, f"{run.lr:g}", *losses, f"{run.seconds:.1f}"))
    return table


def pairs_line(runs: list[Run]) -> str:
    """What became of AdaQN's cycles; the first of them only starts the history."""
    s = next(run.optimizer.stats for run in runs if isinstance(run.optimizer, AdaQN))
    return f"in {s.cycles} cycles {s.stored} pairs stored, {s.skipped} skipped, {s.rejected} rejected"


def terminal_table(table: list[tuple[str, ...]], headings: tuple[str, ...] = HEADINGS) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD)
    for i, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in table:
        drawn.add_row(*row)
    return drawn


def report(runs: list[Run], data: Data, table: list[tuple[str, ...]], *, steps: int, seed: int, threads: int) -> str:
    """The report as Markdown, with the picture in it."""
    done = min(run.steps for run in runs)
    stopped = "" if done == steps else f"\n**Interrupted after {done:,} of {steps:,} steps.**\n"
    rule = "|---|" + "---:|" * (len(HEADINGS) - 1)
    lines = [f"| {' | '.join(row)} |" for row in (HEADINGS, *table)]
    grids = "\n".join(f"  - {name}: {', '.join(f'{lr:g}' for lr in grid)}" for name, grid in GRIDS.items())
    versions = ", ".join(f"{name} {version(name)}" for name in ("adaqn", "torch", "matplotlib"))
    epochs = done * BATCH / len(data.train)
    parameters = sum(p.numel() for p in runs[0].model.parameters())
    return f"""# Three optimizers on Python's documentation
{stopped}
![Validation loss over steps and over seconds](curves.png)

{chr(10).join((lines[0], rule, *lines[1:]))}

{UNIT} AdaQN: {pairs_line(runs)}.

## What was run

- **Task.** Predict the next character of Python's help topics (`pydoc_data.topics`, joined in sorted order):
  {data.characters:,} characters, {data.vocabulary} of them different. The first 90 % train, the next 5 % validate,
  the last 5 % test. Each version of Python carries its own text; the SHA-256 of this one is
  `{data.sha256}`.
- **Model.** {LAYERS} tanh layers of {UNITS} units, {parameters:,} parameters, all drawn from N(0, 0.1²).
- **Training.** {done:,} steps ({epochs:.1f} epochs) on batches of {BATCH} sequences of {SEQUENCE} characters, each
  from a state of zeros. All start from the same weights and take a step each on the same batch in turn, so that
  whatever else the machine does slows all of them alike.
- **Clock.** AdaQN's monitoring is on it, the evaluations for the curves are not.
- **Losses.** Of the weights as they are after the last step, no averages; "Train" is over {len(data.validation)}
  training sequences, as many as there are to validate.
- **Options.** AdaQN has the paper's, and monitors {MONITORED} sequences of the training split; Adagrad and Adam
  have torch's.
- **Step sizes.** The lowest final validation loss of five, searched at seed 0 and 1,200 steps (`--tune` repeats it).
  The test split is only reported.
{grids}
- **Versions.** Python {platform.python_version()}, {versions}; {platform.machine()}.
- **Seed** {seed}, **threads** {threads}.

## Again

    python examples/demo.py --steps {steps} --seed {seed} --threads {threads}
"""
