"""Options of an optimizer by flat names, as runs store them and the command line takes them."""

from __future__ import annotations

import importlib.util
import inspect
import json
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

import adaqn
from adaqn import PRESETS, AdaQN, EmpiricalFisher, Monitor, MonitoredGradient, QuasiNewton
from adaqn.core.scaling_names import SCALINGS
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE, CurvatureBatches, Entry, entry
from adaqn.experiments.problems.tasks import Task
from adaqn.experiments.reading import BrokenJSONError, parse_json
from adaqn.experiments.training.averages import decays
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.whole_settings import PROBLEMS, is_whole
from adaqn.optim.removed import FLAT, PLACES, flat_preset, from_flat

RESERVED = {
    "lr": "give the step size as --lr",
    "monitor": "the laboratory makes it: --monitor-size",
    "params": "they are the model's",
    "maximize": "losses are to be small",
    "process_group": "torchrun decides which processes there are",
}
STORED = ("history_dtype", "master_weights", "shard_history")
OF_THE_FAMILY = ("decay_steps", "weight_decay", "on_nonfinite", "direction", *STORED)
"""What the methods of the family take beside their own numbers."""
NEVER_STORED = {"self", "model", "batches", "on_cycle", "pairs", "reject", "storage", *RESERVED}

NAMED = ("task", "problem", "data", "model", "optimizer", "lr", "options", "seed")
"""Settings that every command and table names; the others are named where they differ from the usual."""


def make_optimizer(name: str, lr: float | None, options: dict[str, Any], model: nn.Module, task: Task) -> Optimizer:
    """The optimizer of that name for that model; a monitored one gets a batch of the training split."""
    chosen = entry(name)
    _check(name, chosen, options)
    _check_task(name, chosen, task)
    given: dict[str, Any] = {**chosen.defaults, **options, **_decay(name, chosen, options, task.config.weight_decay)}
    if isinstance(given.get("betas"), list):
        given["betas"] = tuple(given["betas"])
    try:
        given = _arguments(chosen, given, model, task)
        given["lr"] = chosen.lr if lr is None else lr
        if chosen.given == "model and task":
            made = chosen.make(model, task, **given)
        else:
            made = chosen.make(model.named_parameters() if chosen.given == "named" else model.parameters(), **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{name}: {error}") from error
    if task.config.weight_decay and chosen.decay == "added":
        decays(made, task.config.weight_decay)
    return made


def _decay(name: str, chosen: Entry, options: dict[str, Any], asked: float | None) -> dict[str, float]:
    """The run's weight decay as an option of the optimizer, where its own has AdamW's form."""
    if asked is None:
        return {}
    if chosen.decay == "none":
        raise UserError(f"{name} has no weight decay: leave out --weight-decay")
    if "weight_decay" in options:
        raise UserError("weight_decay is given twice, for the run and as an option: leave out --option weight_decay")
    return {"weight_decay": asked} if chosen.decay == "own" else {}


def resolved(config: RunConfig) -> RunConfig:
    """Complete, with the step size that will be used: two ways to ask for the same run are the same run.

    A preset is written out, for its numbers may change from one version to the next.
    """
    complete = config.complete()
    usual = usual_options(complete.optimizer, complete.options)
    lr = usual.pop("lr", entry(complete.optimizer).lr)
    given = {name: value for name, value in complete.options.items() if name != "preset" or not usual}
    return replace(complete, lr=lr if complete.lr is None else complete.lr, options={**usual, **given})


def usual_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the preset of an adaQN says, its step size too; nothing for other optimizers."""
    chosen = entry(name)
    if chosen.make is not AdaQN:
        return {}
    preset = options.get("preset", chosen.defaults["preset"])
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"no preset called {preset!r}: give one of {', '.join(PRESETS)}")
    return {**flat_preset(preset, options), **_since(preset)}


def _since(preset: str) -> dict[str, Any]:
    """What a preset says of settings that 0.1 did not write out, where they differ from what 0.1 did."""
    chosen, before = PRESETS[preset], PRESETS["paper"]
    values = {name: (getattr(chosen, name), getattr(before, name)) for name in ("warm_up", "averaging")}
    for name, (place, part) in PLACES.items():
        if hasattr(chosen, place) and name not in flat_preset(preset):
            values[name] = tuple(getattr(getattr(p, place), part) for p in (chosen, before))
    return {name: value for name, (value, usual) in values.items() if value != usual and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def own_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those that its preset does not say already."""
    usual = usual_options(name, options) if name in TABLE else {}
    return {option: value for option, value in options.items() if option not in usual or usual[option] != value}


def _arguments(chosen: Entry, given: dict[str, Any], model: nn.Module, task: Task) -> dict[str, Any]:
    """What the constructor takes: objects in the place of names, and today's arguments in the place of flat ones."""
    if not chosen.monitored:
        if "scaling" in given:
            given["scaling"] = _scaling(given["scaling"])
        stored = {name: value for name, value in given.items() if name in STORED and _is_family(chosen)}
        return {**{name: value for name, value in given.items() if name not in stored}, **from_flat(stored)}
    given["scaling"] = _scaling(given.get("scaling"))
    if given.get("curvature") == "empirical_fisher":
        given["curvature"] = EmpiricalFisher(model, task.losses, CurvatureBatches(task))
    given["curvature"] = _curvature(given.get("curvature"))
    preset = given.pop("preset")
    return {**from_flat(given), "preset": preset, "monitor": Monitor(model, task.losses, task.monitoring_set())}


def _curvature(asked: Any) -> Any:
    """Where y comes from by name, or as ``{"name": "monitored", "examples": 32}`` with options of its own."""
    if not isinstance(asked, dict):
        return asked
    options = {name: value for name, value in asked.items() if name != "name"}
    if asked.get("name") != "monitored":
        raise UserError(f"curvature with options of its own must be 'monitored', got {asked.get('name')!r}")
    try:
        return MonitoredGradient(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"curvature monitored: {error}") from error


def _scaling(asked: Any) -> Any:
    """H0 by name, or as ``{"name": "kronecker", "refresh": 10}`` with options of its own."""
    if not isinstance(asked, dict):
        return asked
    options = {name: value for name, value in asked.items() if name != "name"}
    if asked.get("name") not in SCALINGS:
        raise UserError(f"scaling must name one of {', '.join(sorted(SCALINGS))}, got {asked.get('name')!r}")
    try:
        return SCALINGS[asked["name"]](**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"scaling {asked['name']}: {error}") from error


def _is_family(chosen: Entry) -> bool:
    kind = chosen.kind or chosen.make
    return inspect.isclass(kind) and issubclass(kind, QuasiNewton) and kind is not AdaQN


def _check_task(name: str, chosen: Entry, task: Task) -> None:
    if is_whole(task.config.task):
        if chosen.step == "indexed" or name == "sqn":
            raise UserError(f"{name} is for batches that change: {task.config.task} has one")
        if name == "kfac" and task.config.problem not in ("autoencoder", "digits"):
            raise UserError(f"kfac needs layers that are called once: {task.config.problem} has other ones")
        if chosen.blocking and task.config.resample:
            raise UserError(f"{name} minimises one function in one call: leave out --resample")
        if is_ours_for_whole(name) and task.config.resample == 1:
            raise UserError(f"{name} compares losses of one sample: --resample must be at least 2")
    elif chosen.whole:
        raise UserError(f"{name} needs the whole batch at every step: it is for --task {' or '.join(PROBLEMS)}")


def check_schedule(config: RunConfig, optimizers: Sequence[str]) -> None:
    """Where a user asks for a schedule; studies give one to all methods of a cell, and some have no use for it."""
    asked = {"schedule": config.schedule != "constant", "warm-up": config.warm_up > 0}
    for name in optimizers:
        for option in (option for option, given in asked.items() if given and not follows_schedule(name)):
            raise UserError(
                f"{option} is not for {name}, whose step(closure) {_why_no_schedule(name)}: leave out --{option}"
            )


def _why_no_schedule(name: str) -> str:
    searches = entry(name).whole or entry(name).step == "outputs"
    return "finds the length of a step itself" if searches else "has one step size throughout the run"


def follows_schedule(name: str) -> bool:
    """Is its step size set before every step?"""
    return entry(name).step == "plain"


def is_ours_for_whole(name: str) -> bool:
    """Is it one of ours for whole gradients, which want to be told of a new sample?"""
    kind = entry(name).kind
    return isinstance(kind, str) and kind.startswith("adaqn.")


def _check(name: str, chosen: Entry, options: dict[str, Any]) -> None:
    for option in options:
        if option in RESERVED:
            raise UserError(f"{option} is no option to be set: {RESERVED[option]}")
    kind: Any = chosen.kind or chosen.make
    if isinstance(kind, str) and kind.startswith("adaqn."):
        kind = getattr(adaqn, kind.partition(".")[2], None)
        if kind is None:
            return  # making it will say that it is missing
    if isinstance(kind, str):
        if importlib.util.find_spec("pytorch_optimizer") is None:
            return  # making it will say what to install
        import pytorch_optimizer

        kind = getattr(pytorch_optimizer, kind)
    if chosen.blocking:
        return  # the options of other packages, which check them
    known = {name for name, p in inspect.signature(kind).parameters.items() if p.kind is not p.VAR_KEYWORD}
    if _is_family(chosen):
        known |= set(OF_THE_FAMILY)
    elif kind is AdaQN:
        known |= set(FLAT)
    known -= NEVER_STORED
    unknown = sorted(set(options) - known)
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}: it knows {', '.join(sorted(known))}")


# ---------------------------------------------------------------------- on the command line


def command(config: RunConfig, seeds: Sequence[int]) -> str:
    """The shell command that makes these runs again.

    >>> command(RunConfig(optimizer="adam", lr=0.01, hidden=20), [0, 1])
    'for seed in 0 1; do adaqn train --task char-lm --optimizer adam --lr 0.01 --hidden 20 --seed "$seed"; done'
    """
    words = ["adaqn", "train", "--task", config.task]
    for name in ("problem", "data", "model"):
        if getattr(config, name) != getattr(RunConfig(), name):
            words += [f"--{name}", getattr(config, name)]
    words += ["--optimizer", config.optimizer]
    words += [] if config.lr is None else ["--lr", repr(config.lr)]
    for name, value in sorted(own_options(config.optimizer, config.options).items()):
        words += ["--option", f"{name}={option_text(value)}"]
    usual = RunConfig(config.task, config.problem, config.data, model=config.model).complete()
    for name in (f.name for f in fields(RunConfig) if f.name not in NAMED):
        value = getattr(config, name)
        if name in ("schedule", "warm_up") and not follows_schedule(config.optimizer):
            continue  # it changes nothing
        if value is not None and value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    if len(seeds) == 1:
        return f"{shlex.join(words)} --seed {seeds[0]}"
    return f'for seed in {" ".join(map(str, seeds))}; do {shlex.join(words)} --seed "$seed"; done'


def option_text(value: Any) -> str:
    """As ``--option name=value`` reads it back: JSON, or bare text that is not JSON.

    >>> [option_text(value) for value in ("adam", "1", 0.5, None, True)]
    ['adam', '"1"', '0.5', 'null', 'true']
    """
    if isinstance(value, str):
        try:
            parse_json(value)
        except BrokenJSONError:
            return value
    return json.dumps(value)


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """name=value pairs; values are JSON where they can be, text otherwise.

    >>> parse_options(["cycle_length=10", "scaling=adam"])
    {'cycle_length': 10, 'scaling': 'adam'}
    """
    options = {}
    for item in given or []:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise UserError(f"an option is written name=value, got {item!r}")
        try:
            options[name] = parse_json(value)
        except BrokenJSONError:
            options[name] = value
    return options
