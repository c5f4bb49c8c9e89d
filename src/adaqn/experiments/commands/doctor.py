"""``adaqn doctor``: what is installed, which data is there, how fast this machine is, what AdaQN costs for a model."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor, nn

from adaqn import PRESETS
from adaqn.core.units import readable_size
from adaqn.experiments.commands import measuring
from adaqn.experiments.commands.display import screen
from adaqn.experiments.commands.options import AsJson, DataDir, Device, Threads
from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.problems.networks import CONV, TRANSFORMER
from adaqn.experiments.training.config import TASKS, RunConfig, check_machine
from adaqn.experiments.training.storage import json_text

PACKAGES = ("adaqn", "torch", "plotly", "matplotlib", "scikit-learn", "pooch", "pytorch_optimizer")
BFLOAT16: dict[str, Any] = {"history_dtype": torch.bfloat16, "fisher_dtype": torch.bfloat16}
USUAL = next(name for name, preset in PRESETS.items() if name != "default" and preset is PRESETS["default"])
"""The preset that AdaQN has by default, by its own name."""
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{preset}{', bfloat16 history' if dtypes else ''}": (preset, dtypes)
    for preset in sorted(PRESETS, key=lambda preset: preset != USUAL)
    if preset != "default"
    for dtypes in ({}, BFLOAT16)
    if not dtypes or PRESETS[preset].pairs.memory_size  # a history to be made narrower
}
RIVALS = {"AdamW": "adamw", "SOAP": "soap"}
READ_BYTES = 1 << 30
NETWORKS = {TRANSFORMER: "char-lm", CONV: "mlp"}
"""Models that no task has by default, and a task that they can learn."""
Loss = Callable[[], Tensor]


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="A task, transformer, conv, or module:function that returns a model or (model, loss)."),
    ] = None,
    threads: Threads = 2,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what is installed, which data is available, how fast this machine is, and what AdaQN costs for a model."""
    found = examine(model, threads, data_dir, device)
    if as_json:
        print(json_text(found, indent=2))
        return
    print(
        f"Python {found['python']} on {found['machine']}; {found['device']} reads {found['read_gb_per_second']} GB/s "
        f"({threads} thread{'' if threads == 1 else 's'})"
    )
    print("installed: " + ", ".join(f"{name} {version or '–'}" for name, version in found["packages"].items()))
    print("data: " + ", ".join(f"{name} {'here' if here else 'not here'}" for name, here in found["data"].items()))
    if "model" in found:
        print_costs(found["model"])


def print_costs(found: dict[str, Any]) -> None:
    table = Table("", "memory", "ms per step", "range", title=f"{found['name']}: {found['parameters']:,} parameters")
    passes = found["forward_and_backward"]
    rows = {} if passes is None else {"forward and backward": passes}
    for name, cost in {**rows, **found["settings"]}.items():
        low, middle, high = (f"{1e3 * cost[key]:.2f}" for key in ("low", "seconds_per_step", "high"))
        size = readable_size(cost["bytes"]) if "bytes" in cost else "–"
        label = f"AdaQN, {name}{' (default)' if name == USUAL else ''}" if name in SETTINGS else name
        table.add_row(label, size, middle, f"{low} to {high}")
    screen().print(table)
    print("Times of a step exclude forward and backward, and AdaQN's monitor; the range is over 5 repeats.")
    for note in found["notes"]:
        print(note)


def examine(model: str | None, threads: int, data_dir: Path | None = None, device: str = "cpu") -> dict[str, Any]:
    """Everything that the command prints."""
    torch.set_num_threads(check_machine(threads, device))
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        "device": device,
        "packages": {name: _version(name) for name in PACKAGES},
        "data": {
            name: all(files.find(file, data_dir) for file in members) for name, members in files.DATA_SETS.items()
        },
        "read_gb_per_second": round(read_bandwidth(device), 1),
    }
    if model is not None:
        found["model"] = examine_model(model, data_dir, device)
    return found


def examine_model(model: str, data_dir: Path | None, device: str) -> dict[str, Any]:
    """What a step takes with each optimizer, and beside it the passes through the model where its loss is known."""
    before = measuring.load()
    network, loss = load_model(model, data_dir, device)
    settings, times, notes, passes = {}, [], [], None
    if loss is None:
        notes.append(
            "to time forward and backward, let the function return (model, loss), where loss() is the loss of a batch"
        )
    else:
        times.append(_passes(model, loss, network, device))
        passes = times[0].as_dict()
    for label, name in RIVALS.items():
        if name == "soap" and _version("pytorch_optimizer") is None:
            notes.append("SOAP is not measured: pip install pytorch_optimizer")
            continue
        settings[label], taken = measuring.cost_of_rival(network, name, device)
        times.append(taken)
    for label, setting in SETTINGS.items():
        settings[label], taken = measuring.cost_of_adaqn(network, *setting, device)
        times.append(taken)
    warning = measuring.busy(before, times, device)
    return {
        "name": model,
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "forward_and_backward": passes,
        "settings": settings,
        "busy": warning is not None,
        "notes": [*notes, *([] if warning is None else [f"warning: {warning}"])],
    }


def _passes(model: str, loss: Loss, network: nn.Module, device: str) -> measuring.Times:
    try:
        return measuring.passes(loss, network, device)
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"the loss of {model!r} cannot be computed: {error}") from error


def read_bandwidth(device: str = "cpu") -> float:
    """GB/s of reading initialised memory larger than most caches; the best of a few passes."""
    block = torch.ones(READ_BYTES // 4, device=device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        float(block.sum())  # waits for the device
        times.append(time.perf_counter() - start)
    return READ_BYTES / min(times) / 1e9


def load_model(name: str, data_dir: Path | None, device: str = "cpu") -> tuple[nn.Module, Loss | None]:
    """The model of a task at its defaults and the loss of a batch, or what ``module:function`` returns."""
    if name in TASKS or name in NETWORKS:
        base = RunConfig(task=name) if name in TASKS else RunConfig(task=NETWORKS[name], model=name)
        task = make_task(replace(base.complete(), device=device), data_dir)
        network, (x, target) = task.model(), task.batch(0)
        return network, lambda: task.losses(network(x), target).mean()
    module, separator, function = name.partition(":")
    if not separator:
        raise UserError(
            f"a model is one of {', '.join([*TASKS, *NETWORKS])}, or module:function that returns one; got {name!r}"
        )
    sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), function)()
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"cannot make a model from {name!r}: {error}") from error
    network, loss = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(network, nn.Module):
        raise UserError(f"{name} returned {type(network).__name__}, not a torch.nn.Module")
    if loss is not None and not callable(loss):
        raise UserError(f"{name} returned a model and {type(loss).__name__}, not a function that computes a loss")
    if not any(p.requires_grad and p.numel() for p in network.parameters()):
        raise UserError(f"the model of {name} has no trainable parameter")
    if loss is None:
        network = network.to(device)  # otherwise its batch is where it is
    return network, loss


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
