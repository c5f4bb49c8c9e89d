"""Optimizers by name: one line each in one table."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import adaqn
from adaqn import OLBFGS, PRESETS, RES, SQN, AdaQN, HessianProduct, SdLBFGS
from adaqn.baselines import KFAC, SFO, HessianFree
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.linear_recurrent import from_torch
from adaqn.experiments.problems.networks import Recurrent
from adaqn.experiments.problems.tasks import Task
from adaqn.experiments.problems.transformer import Transformer
from adaqn.experiments.rivals.muon import muon
from adaqn.experiments.rivals.recipe import SLICE, TORCH_LBFGS, AdamThenLBFGS
from adaqn.experiments.rivals.vectors import Scipy, TorchMin

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
    """The class whose options may be set, if ``make`` is not it; by name one of pytorch_optimizer or adaqn."""
    linear_cells: bool = False
    """Must it see every product of a recurrent net? Then the cells are made of linear layers."""
    whole: bool = False
    """Does it search along lines, so that it needs the same batch all the time? It then has no step size to tune."""
    decay: str = "none"
    """Its weight decay: ``"own"`` is AdamW's, w ← (1 − lr·λ)·w; ``"added"`` goes into the gradient, so that the run
    makes AdamW's in its place; ``"none"``."""
    schedule_free: bool = False
    """Are its losses those of an average that it keeps, so that a schedule has no use?"""
    blocking: bool = False
    """Does its step end only when the minimisation does? Interrupted, such a run begins anew."""


def _need_rivals(name: str) -> None:
    if importlib.util.find_spec("pytorch_optimizer") is None:
        raise UserError(f"{name} comes from the package pytorch_optimizer: pip install pytorch_optimizer")


def _rival(name: str) -> Make:
    """An optimizer of pytorch_optimizer, imported when it is asked for."""

    def make(params: Any, **options: Any) -> Optimizer:
        _need_rivals(name)
        import pytorch_optimizer

        optimizer: Optimizer = getattr(pytorch_optimizer, name)(params, **options)
        return optimizer

    return make


def _muon(named: Any, **options: Any) -> Optimizer:
    _need_rivals("Muon")
    return muon(named, **options)


def _preset(label: str, name: str) -> Entry:
    return Entry(label, AdaQN, PRESETS[name].lr, {"preset": name}, monitored=True, decay="own")


CURVATURE_BATCH = 4
"""SQN's batches for the Hessian, in batches of the gradient."""


def _sqn(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    batches = CurvatureBatches(task, CURVATURE_BATCH)
    return SQN(model.parameters(), curvature=HessianProduct(model, task.losses, batches), **options)


def _sfo(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    return SFO(model.parameters(), batches=task.steps_per_epoch, **options)


def _kfac(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    terms = task.config.length if task.recurrent_text else None
    return KFAC(model, **{"terms_per_example": terms or 1, **options})


ADAM_SHARE = 0.3
"""Of the evaluations, before L-BFGS begins."""


def _adam_lbfgs(model: nn.Module, task: Task, **options: Any) -> Optimizer:
    assert task.config.steps is not None
    return AdamThenLBFGS(model.parameters(), **{"adam_steps": round(ADAM_SHARE * task.config.steps), **options})


def _ours(name: str) -> Make:
    """An optimizer of adaqn that this version may not have."""

    def make(params: Any, **options: Any) -> Optimizer:
        kind = getattr(adaqn, name, None)
        if kind is None:
            raise UserError(f"there is no adaqn.{name} in version {adaqn.__version__}")
        optimizer: Optimizer = kind(params, **options)
        return optimizer

    return make


def _searching(label: str, make: Make, more: dict[str, Any] | None = None, **changes: Any) -> Entry:
    """One that searches along lines, and so needs the whole batch."""
    return Entry(label, make, 1.0, more or {}, "closure", whole=True, **changes)


_FULL = {name: value for name, value in SLICE.items() if name != "history_size"}
WHOLE: dict[str, Entry] = {
    "torch-lbfgs": _searching("L-BFGS (torch)", torch.optim.LBFGS, TORCH_LBFGS),
    "adam-lbfgs": Entry(
        "Adam, then L-BFGS", _adam_lbfgs, 1e-3, {}, "closure", given="model and task", kind=AdamThenLBFGS, whole=True
    ),
    "adaqn-lbfgs": _searching("L-BFGS (adaqn)", _ours("LBFGS"), SLICE, kind="adaqn.LBFGS"),
    "adaqn-bfgs": _searching("BFGS (adaqn)", _ours("BFGS"), {**_FULL, "update": "bfgs"}, kind="adaqn.BFGS"),
    "adaqn-ssbfgs": _searching("SSBFGS (adaqn)", _ours("BFGS"), {**_FULL, "update": "ssbfgs"}, kind="adaqn.BFGS"),
    "adaqn-ssbroyden": _searching(
        "SSBroyden (adaqn)", _ours("BFGS"), {**_FULL, "update": "ssbroyden"}, kind="adaqn.BFGS"
    ),
    "scipy-lbfgs": _searching("L-BFGS-B (scipy)", Scipy, {"method": "L-BFGS-B"}, blocking=True),
    "scipy-bfgs": _searching("BFGS (scipy)", Scipy, {"method": "BFGS"}, blocking=True),
    "torchmin-lbfgs": _searching("L-BFGS (pytorch-minimize)", TorchMin, {"method": "l-bfgs"}, blocking=True),
    "torchmin-bfgs": _searching("BFGS (pytorch-minimize)", TorchMin, {"method": "bfgs"}, blocking=True),
}
"""For whole batches alone."""

TABLE: dict[str, Entry] = {
    "adaqn": _preset("AdaQN", "default"),
    "adaqn-paper": _preset("adaQN (paper)", "paper"),
    "adaqn-modern": _preset("AdaQN (modern)", "modern"),
    "adaqn-kronecker": _preset("AdaQN (Kronecker)", "kronecker"),
    "sgd": Entry("SGD", torch.optim.SGD, 0.1, decay="added"),
    "momentum": Entry("momentum", torch.optim.SGD, 0.1, {"momentum": 0.9}, decay="added"),
    "nag": Entry("NAG", torch.optim.SGD, 0.1, {"momentum": 0.9, "nesterov": True}, decay="added"),
    "adagrad": Entry("Adagrad", torch.optim.Adagrad, 1e-2, decay="added"),
    "rmsprop": Entry("RMSProp", torch.optim.RMSprop, 1e-3, decay="added"),
    "adam": Entry("Adam", torch.optim.Adam, 1e-3, decay="added"),
    "adamw": Entry("AdamW", torch.optim.AdamW, 1e-3, decay="own"),
    "nadam": Entry("NAdam", torch.optim.NAdam, 2e-3, decay="added"),
    "lbfgs": Entry("L-BFGS (torch)", torch.optim.LBFGS, 0.1, {"max_iter": 4, "history_size": 10}, "closure"),
    "olbfgs": Entry("oLBFGS", OLBFGS, 0.1, {"regularisation": 0.1}, "closure", decay="own"),
    "res": Entry("RES", RES, 0.1, {}, "closure", decay="own"),
    "sdlbfgs": Entry("SdLBFGS", SdLBFGS, 0.1, {}, "closure", decay="own"),
    "sqn": Entry("SQN", _sqn, 0.1, given="model and task", kind=SQN, decay="own"),
    "sfo": Entry("SFO", _sfo, 1.0, {}, "indexed", given="model and task", kind=SFO),
    "hf": Entry("Hessian-Free", HessianFree, 1.0, {"max_cg_iterations": 50}, "outputs"),
    "kfac": Entry("K-FAC", _kfac, 0.1, given="model and task", kind=KFAC, linear_cells=True, decay="own"),
    "soap": Entry("SOAP", _rival("SOAP"), 3e-3, {"weight_decay": 0.0}, kind="SOAP", decay="own"),
    "soap-5": Entry(
        "SOAP (5)", _rival("SOAP"), 3e-3, {"weight_decay": 0.0, "precondition_frequency": 5}, kind="SOAP", decay="own"
    ),
    "schedule-free": Entry(
        "schedule-free",
        _rival("ScheduleFreeAdamW"),
        2.5e-3,
        kind="ScheduleFreeAdamW",
        decay="own",
        schedule_free=True,
    ),
    "prodigy": Entry("Prodigy", _rival("Prodigy"), 1.0, {"safeguard_warmup": True}, kind="Prodigy", decay="own"),
    "muon": Entry("Muon", _muon, 0.02, given="named", kind="Muon", decay="own"),
    "shampoo": Entry(
        "Shampoo",
        _rival("ScalableShampoo"),
        3e-2,
        {"preconditioning_compute_steps": 10},
        kind="ScalableShampoo",
        decay="added",
    ),
    **WHOLE,
}


def entry(name: str) -> Entry:
    if name not in TABLE:
        raise UserError(f"no optimizer called {name!r}: give one of {', '.join(TABLE)}")
    return TABLE[name]


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


SECOND_DERIVATIVES = ("hf", "sqn")
"""Optimizers that differentiate a gradient."""


def prepare_model(name: str, model: nn.Module) -> nn.Module:
    """The same model in a form that this optimizer can look into."""
    if isinstance(model, Transformer):
        model.twice_differentiable = name in SECOND_DERIVATIVES
    if entry(name).linear_cells and isinstance(model, Recurrent) and isinstance(model.cells, nn.RNNBase):
        model.cells = from_torch(model.cells)
    return model


class CurvatureBatches:
    """Batches of the training split by number, ``joined`` so many in one."""

    def __init__(self, task: Task, joined: int = 1) -> None:
        self.task, self.joined = task, joined

    def __iter__(self) -> Any:
        for start in range(0, self.task.steps_per_epoch, self.joined):
            parts = [self.task.batch(start + i) for i in range(self.joined)]
            yield tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
