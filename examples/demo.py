"""AdaQN, Adagrad and Adam side by side on a small character-level RNN, in about two minutes.

Leaves a picture of the curves and a short report in ``demo-output``; ``--help`` shows the options.
The experiment itself is in ``demo_training.py``.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

    from demo_training import Run

STEPS, QUICK_STEPS = 1200, 20
INTERRUPTED = 130  # what a shell expects after Ctrl-C


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def whole_number(low: int, high: float = math.inf) -> Any:
    def parse(text: str) -> int:
        limits = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number {limits}, got {number}")
        return number

    return parse


def directory(text: str) -> Path:
    path = Path(text)
    existing = next((p for p in (path, *path.parents) if p.exists()), path)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write to {text!r}: {existing} is not a directory one may write to")
    return path


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--steps", type=whole_number(1), help=f"steps of each optimizer (default: {STEPS})")
    parser.add_argument("--seed", type=whole_number(0), default=0, help="of weights, batches and samples (default: 0)")
    parser.add_argument("--out", type=directory, default="demo-output", help="where to write (default: demo-output)")
    # Products this small gain nothing from a second thread, and two that wait for each other on a busy machine crawl.
    parser.add_argument("--threads", type=whole_number(1, os.cpu_count() or 1), default=1, help="default: 1")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps, to see that everything works")
    parser.add_argument("--tune", action="store_true", help="repeat the search for the step sizes, print it, and stop")
    arguments = parser.parse_args(argv)
    arguments.steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    return arguments


class Stop:
    """Ctrl-C as a wish for the end of the current step, so that no step is cut in two."""

    requested = False

    def __call__(self) -> bool:
        return self.requested

    @contextmanager
    def listening(self) -> Iterator[None]:
        def request(*_: object) -> None:
            self.requested = True

        before = signal.signal(signal.SIGINT, request)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def train_with_bars(runs: list[Run], arguments: argparse.Namespace, stop: Stop, console: Console) -> None:
    """One progress bar for each run."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from demo_training import train

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("train {task.fields[train]:.3f}  val {task.fields[validation]:.3f}"),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        unknown = {"train": math.nan, "validation": math.nan}
        names = {run: run.name + (f" {run.lr:g}" if arguments.tune else "") for run in runs}
        bars = {run: progress.add_task(names[run], total=arguments.steps, **unknown) for run in runs}

        def on_step(run: Run) -> None:
            fields = {"train": run.loss, "validation": run.points[-1].validation}
            progress.update(bars[run], completed=run.steps, **fields)

        train(runs, arguments.steps, arguments.seed, on_step, stop)


def compare(arguments: argparse.Namespace, console: Console) -> int:
    """Train all three, write the picture and the report, print the table."""
    from demo_report import UNIT, draw, pairs_line, report, rows, terminal_table, write_atomically
    from demo_training import STEP_SIZES, Run, load_data

    out, seed, stop, data = arguments.out, arguments.seed, Stop(), load_data()
    out.mkdir(parents=True, exist_ok=True)
    runs = [Run(name, lr, data, seed) for name, lr in STEP_SIZES.items()]
    with stop.listening():
        train_with_bars(runs, arguments, stop, console)
        table = rows(runs)
        text = report(runs, data, table, steps=arguments.steps, seed=seed, threads=arguments.threads)
        write_atomically(out / "curves.png", draw(runs, data, seed))
        write_atomically(out / "report.md", text.encode())
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    if runs[0].steps < arguments.steps:
        done = f"{runs[0].steps} of {arguments.steps} steps"
        console.print(f"Interrupted after {done}: what there is so far is in {out / 'report.md'}", **plain)
        return INTERRUPTED
    console.print(terminal_table(table), f"{UNIT} AdaQN: {pairs_line(runs)}.", highlight=False)
    console.print(f"Picture and report: {out / 'curves.png'}, {out / 'report.md'}", **plain)
    return 0


def tune(arguments: argparse.Namespace, console: Console) -> int:
    """The same training for every step size of every grid; the validation split decides."""
    from demo_report import terminal_table
    from demo_training import GRIDS, Run, load_data

    stop, data = Stop(), load_data()
    runs = [Run(name, lr, data, arguments.seed) for name, grid in GRIDS.items() for lr in grid]
    with stop.listening():
        train_with_bars(runs, arguments, stop, console)
    if stop():
        console.print(f"Interrupted after {runs[0].steps} of {arguments.steps} steps: nothing was chosen.")
        return INTERRUPTED
    finals = {run: run.points[-1].validation for run in runs}
    best = {name: min((r for r in runs if r.name == name), key=lambda r: _finite(finals[r])) for name in GRIDS}
    table = []
    for run in runs:
        stats = getattr(run.optimizer, "stats", None)
        pairs = f"{stats.stored} / {stats.skipped} / {stats.rejected}" if stats else ""
        chosen = "chosen" if run is best[run.name] else ""
        table.append((run.name, f"{run.lr:g}", f"{finals[run]:.3f}", chosen, pairs))
    console.print(terminal_table(table, ("Optimizer", "lr", "Validation", "", "Stored / skipped / rejected")))
    return 0


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        import torch
        from rich.console import Console

        torch.set_num_threads(arguments.threads)
        return (tune if arguments.tune else compare)(arguments, Console())
    except KeyboardInterrupt:
        print("Interrupted: nothing was trained.", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        print(f"demo.py: {error.name} is missing: pip install 'adaqn[experiments]'", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
