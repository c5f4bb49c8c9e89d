"""``adaqn doctor``: what is installed, which data is there, how fast this machine is, what adaQN costs for a model."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from adaqn import PRESETS, AdaQN
from adaqn.experiments.commands.options import AsJson, DataDir, Device, Threads
from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.training.config import TASKS, RunConfig, check_machine
from adaqn.experiments.training.storage import json_text
from adaqn.optim.removed import flat_preset, from_flat

PACKAGES = ("adaqn", "torch", "optuna", "plotly", "matplotlib", "scikit-learn", "pooch", "pytorch_optimizer")
BFLOAT16: dict[str, Any] = {"history_dtype": torch.bfloat16, "fisher_dtype": torch.bfloat16}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{preset}{', bfloat16 history' if dtypes else ''}": (preset, dtypes)
    for preset in PRESETS
    if preset != "default"
    for dtypes in ({}, BFLOAT16)
}
READ_BYTES = 1 << 30


def doctor(
    model: Annotated[str | None, typer.Argument(help="A task, or module:function that returns a model.")] = None,
    threads: Threads = 2,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What is installed, which data is there, how fast this machine is, and what adaQN costs for a model."""
    found = examine(model, threads, data_dir, device)
    if as_json:
        print(json_text(found, indent=2))
        return
    print(
        f"Python {found['python']} on {found['machine']}; {found['device']} reads {found['read_gb_per_second']} GB/s "
        f"({threads} threads)"
    )
    print("installed: " + ", ".join(f"{name} {version or '–'}" for name, version in found["packages"].items()))
    print("data: " + ", ".join(f"{name} {'here' if here else 'not here'}" for name, here in found["data"].items()))
    if "model" in found:
        table = Table("setting", "memory", "ms per step", title=f"{model}: {found['model']['parameters']:,} parameters")
        for name, cost in found["model"]["settings"].items():
            table.add_row(name, f"{cost['bytes'] / 1e6:,.1f} MB", f"{1e3 * cost['seconds_per_step']:.2f}")
        Console().print(table)


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
        network = load_model(model, data_dir).to(device)
        found["model"] = {
            "name": model,
            "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "settings": {name: cost(network, *setting) for name, setting in SETTINGS.items()},
        }
    return found


def read_bandwidth(device: str = "cpu") -> float:
    """GB/s of reading initialised memory larger than most caches; the best of a few passes."""
    block = torch.ones(READ_BYTES // 4, device=device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        float(block.sum())  # waits for the device
        times.append(time.perf_counter() - start)
    return READ_BYTES / min(times) / 1e9


def cost(network: nn.Module, preset: str, dtypes: dict[str, Any]) -> dict[str, float]:
    """Bytes of state, and seconds per step measured over whole cycles with full memory."""
    params = [p.detach().clone().requires_grad_() for p in network.parameters() if p.requires_grad]
    given = from_flat({"preset": preset, "acceptance": "none", "curvature_test": lambda *_: True, **dtypes})
    opt = AdaQN(params, lr=0.0, **given)
    size = opt.state_size()
    opt.param_groups[0]["lr"] = 1e-9
    usual = flat_preset(preset)
    length = usual["cycle_length"]

    def cycles(count: int) -> None:
        for _ in range(count * length):
            for p in params:
                p.grad = torch.randn_like(p) if p.grad is None else p.grad.neg_()
            opt.step()

    cycles(max(usual["memory_size"] + 2, usual["fisher_size"] // length + 1))
    start = time.perf_counter()
    cycles(3)
    return {"bytes": size, "seconds_per_step": (time.perf_counter() - start) / (3 * length)}


def load_model(name: str, data_dir: Path | None) -> nn.Module:
    """The model of a task at its defaults, or what ``module:function`` returns."""
    if name in TASKS:
        return make_task(RunConfig(task=name).complete(), data_dir).model()
    module, separator, function = name.partition(":")
    if not separator:
        raise UserError(f"a model is one of {', '.join(TASKS)}, or module:function that returns one; got {name!r}")
    sys.path.insert(0, "")
    try:
        network = getattr(importlib.import_module(module), function)()
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"cannot make a model from {name!r}: {error}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"{name} returned {type(network).__name__}, not a torch.nn.Module")
    if not any(p.requires_grad and p.numel() for p in network.parameters()):
        raise UserError(f"the model of {name} has no parameter that is trained")
    return network


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
