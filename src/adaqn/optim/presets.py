"""Settings that belong together, by name; every option may still be given beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from adaqn.core.acceptance import Acceptance
from adaqn.core.pairs import CurvatureTest
from adaqn.core.scaling import Scaling


@dataclass(frozen=True)
class Preset:
    """The options of :class:`adaqn.AdaQN` in which presets differ; by default the paper's.

    >>> PRESETS["modern"].momentum
    0.9
    """

    lr: Any = 1e-2
    scaling: str | Scaling = "adagrad"
    momentum: float = 0.0
    nesterov: bool = False
    cycle_length: int | str = 5
    memory_size: int = 10
    fisher_size: int = 100
    damping: float = 0.0
    curvature_test: str | CurvatureTest = "absolute"
    acceptance: str | Acceptance = "factor"
    reject_window: int = 0


PAPER = Preset()
MODERN = Preset(
    lr=3e-3,
    scaling="adam",
    momentum=0.9,
    nesterov=True,
    memory_size=3,
    fisher_size=50,
    damping=0.5,
    curvature_test="scale_free",
    acceptance="auto",
    reject_window=10,
)
KRONECKER = replace(MODERN, scaling="kronecker", cycle_length=10)
DEFAULT = KRONECKER

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"default": DEFAULT, "paper": PAPER, "modern": MODERN, "kronecker": KRONECKER}
)
"""Every preset by its name; ``"default"`` is one of the others."""


def chosen(preset: str, **given: Any) -> Preset:
    """The preset of that name, with what was given in place of its own; ``None`` is not given.

    >>> chosen("modern", memory_size=5, momentum=None).memory_size
    5
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {preset!r}")
    known = {field.name for field in fields(Preset)}
    return replace(PRESETS[preset], **{name: v for name, v in given.items() if name in known and v is not None})
