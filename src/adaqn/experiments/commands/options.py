"""Options that several commands share, declared once: those of the task and of the machine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from adaqn.experiments.problems.networks import MODELS
from adaqn.experiments.training.config import TASKS, RunConfig
from adaqn.experiments.training.whole_settings import DTYPES, PROBLEMS, SCHEDULES

TaskName = Enum("TaskName", {name: name for name in TASKS}, type=str)  # type: ignore[misc]
ModelName = Enum("ModelName", {name: name for name in MODELS}, type=str)  # type: ignore[misc]
ScheduleName = Enum("ScheduleName", {name: name for name in SCHEDULES}, type=str)  # type: ignore[misc]
DtypeName = Enum("DtypeName", {name: name for name in DTYPES}, type=str)  # type: ignore[misc]

DataDir = Annotated[Path | None, typer.Option(help="Folder that already has the data files; also ADAQN_DATA.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Threads = Annotated[int, typer.Option(help="Threads per run.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Workers = Annotated[int, typer.Option(help="Number of parallel runs.")]
ManyWorkers = Annotated[int | None, typer.Option(help="Number of parallel runs.", show_default="one per core")]
BudgetHours = Annotated[
    float | None,
    typer.Option(min=0.0, help="Stop after this many hours; runs are saved, and the same command continues."),
]

_TASK, _MACHINE = "The task and its model", "The machine"


def _option(help: str, *names: str, panel: str = _TASK) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "task": (Annotated[TaskName, _option("The task to learn.")], TaskName["char-lm"]),
    "problem": (
        Annotated[
            str | None, _option("; ".join(f"for {task}: {', '.join(names)}" for task, names in PROBLEMS.items()))
        ],
        None,
    ),
    "data": (
        Annotated[str, _option("embedded, dickens, nietzsche, ptb, mnist, or the path of a text file.")],
        "embedded",
    ),
    "model": (
        Annotated[ModelName, _option("The kind of network; transformer is for texts, conv for mlp.")],
        ModelName["tanh"],
    ),
    "layers": (Annotated[int | None, _option("Layers; by default the paper's.")], None),
    "hidden": (Annotated[int | None, _option("Units per layer; by default the paper's.")], None),
    "seed": (Annotated[int, _option("Seed of weights and batches.")], 0),
    "epochs": (Annotated[float, _option("Passes over the training split.")], 1.0),
    "steps": (
        Annotated[
            int | None,
            _option("Steps instead of epochs; for pinn and fit, evaluations of loss and gradient, by default 2000."),
        ],
        None,
    ),
    "schedule": (
        Annotated[ScheduleName, _option("Schedule of the step size; cosine ends at zero.")],
        ScheduleName["constant"],
    ),
    "warm_up": (Annotated[int, _option("Number of warm-up steps, in which the step size rises.")], 0),
    "batch_size": (Annotated[int | None, _option("Examples per step; by default the task's own.")], None),
    "length": (Annotated[int | None, _option("Symbols per sequence, or steps of the addition problem.")], None),
    "side": (Annotated[int | None, _option("Shrink the images to this side.")], None),
    "points": (Annotated[int | None, _option("Points of an equation, a function or a matrix; by default 2000.")], None),
    "resample": (
        Annotated[int, _option("For pinn: draw new interior points after this many evaluations; 0: never.")],
        0,
    ),
    "limit": (Annotated[int | None, _option("Use only the first so many symbols or training examples.")], None),
    "vocabulary": (
        Annotated[int | None, _option("Largest number of different words for word-lm; rarer ones are <unk>.")],
        None,
    ),
    "spread": (Annotated[str, _option("Read the paper's N(0, 0.01) as a 'variance' or as a 'std'.")], "variance"),
    "carry_state": (
        Annotated[bool, _option("Carry the hidden state through contiguous text.", "--carry-state")],
        False,
    ),
    "clip": (Annotated[float | None, _option("Clip gradients to this norm.")], None),
    "weight_decay": (
        Annotated[float | None, _option("λ of w ← (1 − lr·λ)·w in every step; by default the optimizer's own.")],
        None,
    ),
    "average": (
        Annotated[float | None, _option("Decay of an average of the weights that is also evaluated at the end.")],
        None,
    ),
    "averaging": (
        Annotated[
            float | None,
            _option(
                "c of a growing average of the weights that is also evaluated, over about the last 1/c of the "
                "steps; usually 8. Optimizers with such an average use their own."
            ),
        ],
        None,
    ),
    "monitor_size": (Annotated[int, _option("Training examples in the monitoring set.")], 128),
    "evaluations": (
        Annotated[int, _option("Evaluations per epoch; for pinn and fit, of the whole run, in hundreds.")],
        1,
    ),
    "dtype": (Annotated[DtypeName, _option("Precision of weights and data.")], DtypeName["float32"]),
    "threads": (Annotated[int, _option("Threads per run.", panel=_MACHINE)], 1),
    "device": (Annotated[str, _option("cpu, cuda, ...", panel=_MACHINE)], "cpu"),
}
"""name → (its declaration, its default), by the names of :class:`RunConfig`'s fields."""


def run_options(*left_out: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options of a run; it gets them as one ``base`` configuration.

    ``left_out`` are options that the command sets itself, ``defaults`` replace the usual ones.
    """
    shared = {name: declared for name, declared in RUN_OPTIONS.items() if name not in left_out}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_base(**given: Any) -> None:
            values = {name: given.pop(name) for name in shared}
            plain = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
            command(base=RunConfig(**plain), **given)

        own = [p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name != "base"]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, default), annotation=annotation
            )
            for name, (annotation, default) in shared.items()
        ]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
        with_base.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_base.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_base

    return decorate
