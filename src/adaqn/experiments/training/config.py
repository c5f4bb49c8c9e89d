"""One run, described completely: what ``config.json`` holds and what makes two runs the same."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from adaqn.core.checks import LARGEST_STEP
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.networks import CELLS, CONV, TRANSFORMER
from adaqn.experiments.reading import is_utf8
from adaqn.experiments.schema import LARGEST, shown
from adaqn.experiments.training import whole_settings
from adaqn.experiments.training.whole_settings import DTYPES, PROBLEMS, SCHEDULES, is_whole

TASKS = ("char-lm", "word-lm", "pixel-mnist", "addition", "mlp", *PROBLEMS)


@dataclass(frozen=True)
class RunConfig:
    """Every number of a run. ``None`` is the task's own default, filled in by :meth:`complete`."""

    task: str = "char-lm"
    problem: str | None = None
    """Of the tasks with whole batches."""
    data: str = "embedded"
    model: str = "tanh"
    layers: int | None = None
    hidden: int | None = None
    optimizer: str = "adaqn"
    lr: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the optimizer, by name."""
    seed: int = 0
    epochs: float = 1.0
    steps: int | None = None
    """Overrides ``epochs``. With whole batches, evaluations of loss and gradient."""
    schedule: str = "constant"
    """Of the step size: ``constant``, or ``cosine`` down to zero at the last step."""
    warm_up: int = 0
    """Steps in which the step size rises to its full length."""
    batch_size: int | None = None
    length: int | None = None
    """Symbols per sequence, or steps of the addition problem."""
    side: int | None = None
    """Side of the images for pixel-mnist and mlp."""
    points: int | None = None
    """Of an equation, a function or a matrix."""
    resample: int = 0
    """Evaluations after which the points inside of an equation are drawn anew; 0 is never."""
    limit: int | None = None
    """Use only the first so many symbols or training examples."""
    vocabulary: int | None = None
    """Largest number of different words for word-lm; rarer ones are ``<unk>``."""
    spread: str = "variance"
    """How N(0, 0.01) is read: 0.01 as the ``variance`` or as the ``std``."""
    carry_state: bool = False
    """Carry the hidden state from one batch to the next, through contiguous text."""
    clip: float | None = None
    """Largest norm of the gradient."""
    weight_decay: float | None = None
    """λ of w ← (1 − lr·λ)·w in every step; ``None`` is what the optimizer does by itself."""
    average: float | None = None
    """Decay of an average of the weights, evaluated at the end beside the weights themselves."""
    averaging: float | None = None
    """c of a growing average x ← x + c/(k + c)·(w − x), k counting steps after the warm-up; evaluated throughout."""
    monitor_size: int = 128
    evaluations: int = 1
    """Evaluations per epoch; with whole batches, hundreds of measurements in all."""
    dtype: str = "float32"
    threads: int = 1
    device: str = "cpu"

    def complete(self) -> RunConfig:
        """Defaults filled in, everything checked."""
        if self.task not in TASKS:
            raise UserError(f"no task called {self.task!r}: give one of {', '.join(TASKS)}")
        defaults = {key: value for key, value in self._task_defaults().items() if getattr(self, key) is None}
        config = replace(self, **defaults)
        config._check()
        return config

    def _task_defaults(self) -> dict[str, Any]:
        if is_whole(self.task):
            return whole_settings.defaults(self)
        language = {"hidden": 100 if self.task == "char-lm" else 400, "length": 50, "batch_size": 32}
        language["layers"] = 2 if self.model in ("lstm", "gru", TRANSFORMER) else 5
        if self.model == TRANSFORMER:
            language["hidden"] = 128
        words = {**language, "vocabulary": 10_000}
        return {
            "char-lm": language,
            "word-lm": words,
            "pixel-mnist": {"layers": 1, "hidden": 100, "length": 0, "batch_size": 64},
            "addition": {"layers": 1, "hidden": 100, "length": 50, "batch_size": 64},
            "mlp": {"layers": 2, "hidden": 16 if self.model == CONV else 100, "length": 0, "batch_size": 64},
        }[self.task]

    def _check(self) -> None:
        for name, value in self.to_json().items():
            if isinstance(value, int) and abs(value) > LARGEST:
                raise UserError(f"{name} must be at most {LARGEST}, got {shown(value)}")
            if not is_utf8(value):
                raise UserError(f"{name} is {shown(value)}, which is not UTF-8 and cannot be written down: rename it")
        for name in ("layers", "hidden", "monitor_size", "evaluations"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("steps", "limit", "side", "vocabulary", "batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "clip", "averaging"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} must be a positive number, got {value}")
        if self.lr is not None and self.lr > LARGEST_STEP:
            raise UserError(f"lr must be at most {LARGEST_STEP:.4g}, the largest number of float32, got {self.lr}")
        if self.weight_decay is not None and not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(f"weight_decay must be a number of at least 0, got {self.weight_decay}")
        if self.average is not None and not 0.0 < self.average < 1.0:
            raise UserError(f"average must lie between 0 and 1, got {self.average}: 0.99 averages about 100 steps")
        if not 0 < self.epochs <= MOST_EPOCHS:
            raise UserError(f"epochs must be a positive number of at most {MOST_EPOCHS:g}, got {self.epochs}")
        allowed = models_of(self.task)
        if self.model not in allowed:
            raise UserError(f"no model called {self.model!r} for {self.task}: give one of {', '.join(allowed)}")
        for name, known in (("schedule", SCHEDULES), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.warm_up < 0:
            raise UserError(f"warm_up must be a number of steps of at least 0, got {self.warm_up}")
        if self.spread not in ("variance", "std"):
            raise UserError(f"spread must be 'variance' or 'std', got {self.spread!r}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UserError(f"seed must be from 0 to {LARGEST_SEED}, got {self.seed}")
        if self.task in ("char-lm", "word-lm", "addition"):
            if self.length is not None and self.length < 1:
                raise UserError(f"length must be at least 1, got {self.length}")
        elif self.length:
            raise UserError(f"length is for texts and the addition problem: {self.task} has as many steps as pixels")
        if self.side is not None and self.data != "mnist":
            raise UserError(f"side is for --data mnist: {self.data} is taken as it is")
        if self.vocabulary is not None and self.task != "word-lm":
            raise UserError(f"vocabulary is for word-lm: {self.task} takes its symbols as they are")
        if self.carry_state and self.task not in ("char-lm", "word-lm"):
            raise UserError(f"carry_state is for language models: the sequences of {self.task} are independent")
        if self.model in (TRANSFORMER, CONV):
            self._check_plain_network()
        whole_settings.check(self)
        check_machine(self.threads, self.device)

    def _check_plain_network(self) -> None:
        """Settings of the paper's networks that others have no use for."""
        if self.carry_state:
            raise UserError(f"carry_state is for recurrent nets: a {self.model} has no hidden state")
        if self.spread != "variance":
            raise UserError(f"spread is for the paper's networks: a {self.model} has first weights of its own")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def told(self) -> dict[str, Any]:
        """Without settings that 0.1 did not have, where they are as it was: its runs are still the same runs."""
        usual = RunConfig()
        values = self.to_json()
        return {k: v for k, v in values.items() if k not in ADDED or v != getattr(usual, k)}

    @staticmethod
    def from_json(values: Any, source: object = "the configuration") -> RunConfig:
        """What :meth:`to_json` gave; ``source`` is what an error names."""
        known = {f.name for f in fields(RunConfig)}
        if not isinstance(values, dict):
            raise UserError(f"{source} is damaged: {shown(values)} is no set of named values")
        unknown = sorted(set(values) - known)
        if unknown:
            raise UserError(f"{source} has unknown entries {shown(unknown)}: written by another version?")
        usual = RunConfig()
        for name, value in values.items():
            kinds = _KINDS.get(name, type(getattr(usual, name)))
            if value is None and name in NULLABLE:
                continue
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
                raise UserError(f"{source} is damaged: {name} is {shown(value)}")
        options = values.get("options") or {}
        return RunConfig(**{**values, "options": renamed(options, "auto", "paired")})

    def identity(self, *, as_written: bool = False) -> str:
        """The same for two runs exactly if their numbers must be the same.

        ``as_written`` is what 0.1 made of options that ask for the paired test by its own name.
        """
        values = self.told()
        if self.average is None:
            del values["average"]
        if not as_written:
            values["options"] = renamed(self.options, "paired", "auto")  # what presets called it in 0.1
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def renamed(options: dict[str, Any], before: str, after: str) -> dict[str, Any]:
    """The options with that test for rejections called by its other name; with a monitor per example they are one.

    >>> renamed({"acceptance": "auto", "damping": 0.5}, "auto", "paired")
    {'acceptance': 'paired', 'damping': 0.5}
    """
    return {**options, "acceptance": after} if options.get("acceptance") == before else options


_KINDS: dict[str, Any] = {
    **dict.fromkeys(
        ("layers", "hidden", "steps", "batch_size", "length", "side", "limit", "vocabulary", "points"), int
    ),
    "problem": str,
    **dict.fromkeys(("lr", "clip", "epochs", "average", "weight_decay", "averaging"), (int, float)),
}
NULLABLE = {f.name for f in fields(RunConfig) if f.default is None}
ADDED = ("problem", "points", "resample", "schedule", "warm_up", "dtype", "weight_decay", "averaging")
LARGEST_SEED = 2**31 - 1
MOST_THREADS = 1024
MOST_EPOCHS = 1e9


def models_of(task: str) -> tuple[str, ...]:
    """The models that can learn it."""
    if task in ("char-lm", "word-lm"):
        return (*CELLS, TRANSFORMER)
    return ("tanh", "relu", CONV) if task == "mlp" else CELLS


def check_machine(threads: int, device: str) -> int:
    """The number of threads, once it and the device are known to be usable here."""
    if not 1 <= threads <= MOST_THREADS:
        raise UserError(f"threads must be from 1 to {MOST_THREADS}, got {threads}")
    if device == "meta":
        raise UserError("device 'meta' holds no numbers: give cpu, or one that is there")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {device!r} cannot be used here ({reason}): give cpu, or one that is there") from error
    return threads
