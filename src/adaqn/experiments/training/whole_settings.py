"""What a configuration may say of tasks whose every gradient is of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaqn.experiments.errors import UserError

if TYPE_CHECKING:
    from adaqn.experiments.training.config import RunConfig

PROBLEMS = {
    "pinn": ("burgers", "convection", "allen-cahn", "poisson", "helmholtz", "wave"),
    "fit": ("autoencoder", "digits", "regression", "factorisation"),
}
EVALUATIONS = 2_000
"""Of loss and gradient, if nothing else is asked for."""
SCHEDULES = ("constant", "cosine")
DTYPES = ("float32", "float64")
FEWEST_POINTS = 20
NETWORK = {"layers": 4, "hidden": 40, "points": 2_000}
SIZES: dict[tuple[str, str], dict[str, Any]] = {
    ("autoencoder", "embedded"): {"layers": 3, "hidden": 100},
    ("autoencoder", "mnist"): {"layers": 4, "hidden": 1_000},
    ("digits", "embedded"): {"layers": 2, "hidden": 100},
    ("digits", "mnist"): {"layers": 2, "hidden": 100},
    ("factorisation", "embedded"): {"layers": 1, "hidden": 8, "points": 9_000},
}
"""(problem, data) → what it is by default, if not the network of the others."""

REFUSED: dict[str, tuple[Any, str]] = {
    "batch_size": (None, "every gradient is of the whole batch, and --steps counts evaluations"),
    "clip": (None, "a clipped gradient is not that of the loss, which line searches and curvature pairs need"),
    **dict.fromkeys(("average", "averaging"), (None, "what is measured are the weights of the lowest loss so far")),
    "weight_decay": (None, "what is minimised is the loss as it is, with a penalty where it has one"),
    "epochs": (1.0, "every gradient is of the whole batch, and --steps counts evaluations"),
}
"""Name → (what it is if not given, why it cannot be)."""


def is_whole(task: str) -> bool:
    """Is a step of that task an evaluation of the loss of all examples, and its gradient?"""
    return task in PROBLEMS


def defaults(config: RunConfig) -> dict[str, Any]:
    problem = config.problem or PROBLEMS[config.task][0]
    sizes = SIZES.get((problem, config.data), NETWORK)
    return {"problem": problem, "steps": EVALUATIONS, "length": 0, **sizes}


def check(config: RunConfig) -> None:
    """Everything that is for these tasks alone, or not for them."""
    if config.resample < 0:
        raise UserError(f"resample must be a number of evaluations of at least 0, got {config.resample}")
    if config.resample and config.task != "pinn":
        raise UserError(f"resample is for pinn, whose points are drawn: {config.task} has its examples")
    if not is_whole(config.task):
        for name in ("problem", "points"):
            if getattr(config, name) is not None:
                raise UserError(f"{name} is for {' and '.join(PROBLEMS)}: {config.task} has none")
        return
    known = PROBLEMS[config.task]
    if config.problem not in known:
        raise UserError(f"no problem called {config.problem!r} for {config.task}: give one of {', '.join(known)}")
    takes_images = config.problem in ("autoencoder", "digits")
    if config.data != "embedded" and not (takes_images and config.data == "mnist"):
        allowed = "embedded or mnist" if takes_images else "embedded"
        raise UserError(f"{config.problem} is generated or embedded: --data may be {allowed}, not {config.data!r}")
    if config.points is not None and (takes_images or config.points < FEWEST_POINTS):
        limit = f"at least {FEWEST_POINTS}" if not takes_images else "left out: --limit says how many images"
        raise UserError(f"points must be {limit}, got {config.points}")
    if config.limit is not None and not takes_images:
        raise UserError(f"limit is for images and texts: {config.problem} has --points")
    if config.model != "tanh" and config.problem != "digits":
        raise UserError(f"the network of {config.problem} has tanh, not {config.model!r}")
    for name, (usual, reason) in REFUSED.items():
        if getattr(config, name) != usual:
            raise UserError(f"{name.replace('_', '-')} is not for {config.task}: {reason}")
