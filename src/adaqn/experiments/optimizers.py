"""Optimizers by name: one line each in one table."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from adaqn import OLBFGS, PRESETS, RES, SQN, AdaQN, EmpiricalFisher, HessianProduct, Monitor, SdLBFGS
from adaqn.baselines import KFAC, SFO, HessianFree
from adaqn.core.scaling_names import SCALINGS
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.linear_recurrent import from_torch
from adaqn.experiments.problems.networks import Recurrent
from adaqn.experiments.problems.tasks import Task
from adaqn.experiments.training.config import RunConfig
from adaqn.optim.family import Common

Make = Callable[..., Optimizer]


@dataclass(frozen=True)
class Entry:
    """How to build an optimizer, and what it is called in a figure."""

    label: str
    make: Make
    lr: float
    """The step size of its own documentation, for runs that were not tuned."""
    defaults: dict[str, Any] = field(default_factory=dict)
    step: str = "plain"
    """``"plain"``: step() after backward. ``"closure"``: step(closure). ``"outputs"``: the closure returns loss and
    outputs, without backward. ``"indexed"``: step(closure, index of a batch that is always the same)."""
    monitored: bool = False
    given: str = "parameters"
    """What ``make`` wants: the ``"parameters"``, the ``"named"`` ones, or ``"model and task"``."""
    kind: type[Optimizer] | str | None = None
    """The class whose options may be set, if ``make`` is not it; a name is one of pytorch_optimizer's."""
    linear_cells: bool = False
    """Must it see every product of a recurrent net? Then the cells are made of linear layers."""


def _rival(name: str) -> Make:
    """An optimizer of pytorch_optimizer, imported when it is asked for."""

    def make(params: Any, **options: Any) -> Optimizer:
        if importlib.util.find_spec("pytorch_optimizer") is None:
            raise UserError(f"{name} comes from the package pytorch_optimizer: pip install pytorch_optimizer")
        import pytorch_optimizer

        optimizer: Optimizer = getattr(pytorch_optimizer, name)(params, **options)
        return optimizer

    return make


ADAMW_SHARE = 3e-4 / 2e-2
"""Muon's AdamW step in steps of its own: the ratio of its defaults."""


def _muon(named: Any, **options: Any) -> Optimizer:
    """Muon for the matrices inside; embedding, output and vectors go to its AdamW, as its authors do."""
    inner: list[Any] = []
    outer: list[Any] = []
    for name, p in named:
        is_inner = p.dim() >= 2 and not name.startswith(("embedding.", "output."))
        (inner if is_inner else outer).append(p)
    groups = [{"params": inner, "use_muon": True}, {"params": outer, "use_muon": False}]
    options.setdefault("adamw_lr", ADAMW_SHARE * options["lr"])  # a tuned step size must reach all parameters
    return _rival("Muon")([group for group in groups if group["params"]], **options)


def _preset(label: str, name: str) -> Entry:
    return Entry(label, AdaQN, PRESETS[name].lr, {"preset": name}, monitored=True)


CURVATURE_BATCH = 4
"""SQN's batches for the Hessian, in batches of the gradient."""


def _sqn(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    batches = _CurvatureBatches(task, CURVATURE_BATCH)
    return SQN(model.parameters(), curvature=HessianProduct(model, task.losses, batches), **options)


def _sfo(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    return SFO(model.parameters(), batches=task.steps_per_epoch, **options)


def _kfac(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    terms = task.config.length if task.recurrent_text else None
    return KFAC(model, **{"terms_per_example": terms or 1, **options})


TABLE: dict[str, Entry] = {
    "adaqn": _preset("adaQN", "default"),
    "adaqn-paper": _preset("adaQN (paper)", "paper"),
    "adaqn-modern": _preset("adaQN (modern)", "modern"),
    "adaqn-kronecker": _preset("adaQN (Kronecker)", "kronecker"),
    "sgd": Entry("SGD", torch.optim.SGD, 0.1),
    "momentum": Entry("momentum", torch.optim.SGD, 0.1, {"momentum": 0.9}),
    "nag": Entry("NAG", torch.optim.SGD, 0.1, {"momentum": 0.9, "nesterov": True}),
    "adagrad": Entry("Adagrad", torch.optim.Adagrad, 1e-2),
    "rmsprop": Entry("RMSProp", torch.optim.RMSprop, 1e-3),
    "adam": Entry("Adam", torch.optim.Adam, 1e-3),
    "adamw": Entry("AdamW", torch.optim.AdamW, 1e-3),
    "nadam": Entry("NAdam", torch.optim.NAdam, 2e-3),
    "lbfgs": Entry("L-BFGS (torch)", torch.optim.LBFGS, 0.1, {"max_iter": 4, "history_size": 10}, "closure"),
    "olbfgs": Entry("oLBFGS", OLBFGS, 0.1, {"regularisation": 0.1}, "closure"),
    "res": Entry("RES", RES, 0.1, {}, "closure"),
    "sdlbfgs": Entry("SdLBFGS", SdLBFGS, 0.1, {}, "closure"),
    "sqn": Entry("SQN", _sqn, 0.1, given="model and task", kind=SQN),
    "sfo": Entry("SFO", _sfo, 1.0, {}, "indexed", given="model and task", kind=SFO),
    "hf": Entry("Hessian-Free", HessianFree, 1.0, {"max_cg_iterations": 50}, "outputs"),
    "kfac": Entry("K-FAC", _kfac, 0.1, given="model and task", kind=KFAC, linear_cells=True),
    "soap": Entry("SOAP", _rival("SOAP"), 3e-3, {"weight_decay": 0.0}, kind="SOAP"),
    "muon": Entry("Muon", _muon, 0.02, given="named", kind="Muon"),
    "shampoo": Entry(
        "Shampoo", _rival("ScalableShampoo"), 3e-2, {"preconditioning_compute_steps": 10}, kind="ScalableShampoo"
    ),
}


def entry(name: str) -> Entry:
    if name not in TABLE:
        raise UserError(f"no optimizer called {name!r}: give one of {', '.join(TABLE)}")
    return TABLE[name]


def make_optimizer(name: str, lr: float | None, options: dict[str, Any], model: nn.Module, task: Task) -> Optimizer:
    """The optimizer of that name for that model; a monitored one gets a batch of the training split."""
    chosen = entry(name)
    _check_options(name, chosen, options)
    given: dict[str, Any] = {"lr": chosen.lr if lr is None else lr, **chosen.defaults, **options}
    if chosen.monitored:
        given["monitor"] = Monitor(model, task.losses, task.monitoring_set())
        given["scaling"] = _scaling(given.get("scaling"))
        if given.get("curvature") == "empirical_fisher":
            batches = _CurvatureBatches(task)
            given["curvature"] = EmpiricalFisher(model, task.losses, batches)
    if isinstance(given.get("betas"), list):
        given["betas"] = tuple(given["betas"])
    try:
        if chosen.given == "model and task":
            return chosen.make(model, task, **given)
        return chosen.make(model.named_parameters() if chosen.given == "named" else model.parameters(), **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{name}: {error}") from error


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
    if preset not in PRESETS:
        raise UserError(f"no preset called {preset!r}: give one of {', '.join(PRESETS)}")
    return asdict(PRESETS[preset])


def own_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those that its preset does not say already."""
    usual = usual_options(name, options) if name in TABLE else {}
    return {option: value for option, value in options.items() if option not in usual or usual[option] != value}


def known_classes(name: str) -> list[type]:
    """What the checkpoint of this optimizer holds beside tensors and plain values: Shampoo's own helper objects."""
    if entry(name).kind != "ScalableShampoo" or importlib.util.find_spec("pytorch_optimizer") is None:
        return []
    utils = importlib.import_module("pytorch_optimizer.optimizer.utils")
    modules = (
        importlib.import_module(found.name) for found in pkgutil.iter_modules(utils.__path__, f"{utils.__name__}.")
    )
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


def prepare_model(name: str, model: nn.Module) -> nn.Module:
    """The same model in a form that this optimizer can look into."""
    if entry(name).linear_cells and isinstance(model, Recurrent) and isinstance(model.cells, nn.RNNBase):
        model.cells = from_torch(model.cells)
    return model


class _CurvatureBatches:
    """Batches of the training split by number, ``joined`` so many in one."""

    def __init__(self, task: Task, joined: int = 1) -> None:
        self.task, self.joined = task, joined

    def __iter__(self) -> Any:
        for start in range(0, self.task.steps_per_epoch, self.joined):
            parts = [self.task.batch(start + i) for i in range(self.joined)]
            yield tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


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


RESERVED = {
    "lr": "give the step size as --lr",
    "monitor": "the laboratory makes it: --monitor-size",
    "params": "they are the model's",
    "maximize": "losses are to be small",
    "process_group": "torchrun decides which processes there are",
}


def _check_options(name: str, chosen: Entry, options: dict[str, Any]) -> None:
    for option in options:
        if option in RESERVED:
            raise UserError(f"{option} is no option to be set: {RESERVED[option]}")
    kind = chosen.kind or chosen.make
    if isinstance(kind, str):
        if importlib.util.find_spec("pytorch_optimizer") is None:
            return  # making it will say what to install
        import pytorch_optimizer

        kind = getattr(pytorch_optimizer, kind)
    left_out = {"self", "params", "common", "kwargs", "model", "batches", *RESERVED}
    known = set(inspect.signature(kind).parameters) - left_out
    if inspect.isclass(kind) and issubclass(kind, OLBFGS | RES | SdLBFGS | SQN):
        known |= set(Common.__annotations__) - set(RESERVED)
    unknown = sorted(set(options) - known)
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}: it knows {', '.join(sorted(known))}")
