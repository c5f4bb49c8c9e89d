"""What belongs together among the options of :class:`adaqn.AdaQN`, and the presets.

In all of these ``None`` means "not given": the preset decides. 0 means never, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch

from adaqn.core.acceptance import RejectTest
from adaqn.core.curvature import Curvature
from adaqn.core.direction import Direction
from adaqn.core.pairs import CurvatureTest
from adaqn.core.scaling import Scaling

PresetName = Literal["default", "kronecker", "modern", "paper"]
ScalingName = Literal[
    "identity", "barzilai_borwein", "adagrad", "rmsprop", "adam", "kronecker", "secant", "kronecker_secant"
]
PAIRS_IF_ASKED = 3
"""In memory, where a preset without pairs is given options for them."""
RejectName = Literal["paired", "factor", "relative", "none"]
T = TypeVar("T")


@dataclass(frozen=True)
class PairOptions:
    """Which curvature pairs are kept, and how they are tested and damped.

    >>> from adaqn import AdaQN, PairOptions
    >>> w = torch.nn.Parameter(torch.ones(3))
    >>> opt = AdaQN([w], reject="none", pairs=PairOptions(memory_size=5, fisher_size=20))
    """

    memory_size: int | None = None
    """Number of pairs kept, the paper's m_L. With 0 only H0 is used; cycles are still judged and averaged.
    If the preset has none and any other field is given, it is 3."""
    fisher_size: int | None = None
    """Number of gradients kept for the accumulated Fisher matrix, the paper's m_F."""
    curvature: Literal["accumulated_fisher", "monitored"] | Curvature | None = None
    """Where y comes from: the last gradients, or with ``"monitored"`` the change of the monitored loss's gradient
    (:class:`adaqn.MonitoredGradient`). An :class:`adaqn.EmpiricalFisher` needs no gradients in memory; an
    ``AccumulatedFisher(size, batch_size=B)`` divides as in the paper's equation instead of its line 18 (D4)."""
    test: Literal["absolute", "scale_free", "positive"] | CurvatureTest | None = None
    """Which pairs are stored: ``"absolute"`` (the paper's s·y > ε s·s), ``"scale_free"`` (s·y > ε‖s‖‖y‖),
    ``"positive"`` (s·y > 0), or a function ``(ss, sy, yy, eps) -> bool``."""
    eps: float | None = None
    """ε of that test."""
    scale: Literal["h0", "stored", "current"] | None = None
    """The scale of the pairs. ``"h0"``, the paper's, puts them on top of H0, and the step size scales both. The other
    two put true curvature on top of lr·H0. ``"stored"`` uses the lr of the pair's own cycle, so a later lr still scales
    the whole step. ``"current"`` uses the current lr, so steps along s keep their length."""
    damping: float | None = None
    """y is mixed with H0⁻¹s until s·y is at least this share of s·H0⁻¹s. 0, as in the paper, turns it off."""
    anchor_patience: int | None = None
    """Consecutive skips after which the anchor moves anyway (D6). 0 means never."""
    direction: Literal["gram", "two_loop"] | Direction | None = None
    """How H·g is computed: ``"gram"``, or ``"two_loop"`` as in the paper, which is slower. The results are the same."""


@dataclass(frozen=True)
class RejectOptions:
    """When a cycle is rejected, and what a rejection does.

    >>> from adaqn import AdaQN, Monitor, RejectOptions
    >>> model, loss_fn = torch.nn.Linear(3, 1), torch.nn.MSELoss()
    >>> monitor = Monitor(model, loss_fn, (torch.randn(8, 3), torch.randn(8, 1)))
    >>> opt = AdaQN(model.parameters(), monitor=monitor, reject=RejectOptions("factor", factor=1.05))
    """

    test: RejectName | RejectTest | None = None
    """``"factor"`` (the mean loss grew by more than ``factor``), ``"relative"`` (the same in the paper's other form,
    D12), ``"paired"`` (it grew by more than ``level`` standard errors of the paired differences of per-example losses;
    the factor test if the monitor returns a scalar), ``"none"``, or a function ``(new, old) -> rejected`` of the
    losses at both points. Lower losses are better; with ``maximize`` they are negated."""
    factor: float | None = None
    """γ, by how much the monitored loss may grow."""
    level: float | None = None
    """Number of standard errors in the paired test."""
    first_look: int | None = None
    """Number of monitored examples (of each process) that may suffice to keep a cycle in the paired test. If they do
    not, all examples judge it (D35). With 0, or a batch of less than twice as many, all are always evaluated."""
    window: int | None = None
    """A second rejection within this many cycles halves the step size, and the first cycle is judged too, against the
    initial weights (D15). With 0 the rule of ``patience`` applies instead."""
    patience: int | None = None
    """Consecutive rejections with an empty memory after which the step size is halved (D11). 0 means never."""
    growth: float | None = None
    """How many times ``lr`` the steps may become while the monitored loss falls in nearly every cycle (D37). They
    return to ``lr`` once it does not. 1 turns it off."""
    reset_momentum: bool | None = None
    """Whether a rejection resets the averaged gradient."""
    reset_scaling: bool | None = None
    """Whether a rejection resets H0 (D3)."""


@dataclass(frozen=True)
class StorageOptions:
    """Dtype, device and sharding of the history. ``None`` follows the parameters."""

    history_dtype: torch.dtype | None = None
    """Dtype of the pairs; ``torch.bfloat16`` halves their memory."""
    fisher_dtype: torch.dtype | None = None
    """Dtype of the gradients in F̃."""
    fisher_device: torch.device | str | None = None
    """Device of F̃, for example ``"cpu"``."""
    master_weights: bool = False
    """Keep float32 copies of bfloat16 or float16 parameters, and update those. After changing the weights yourself,
    call ``reset_history()``; otherwise the copies undo the change."""
    shard_history: bool = False
    """With DDP, keep a share of the history in each process (``docs/distributed.md``)."""


@dataclass(frozen=True)
class Preset:
    """All values of a preset; the defaults are the paper's.

    >>> PRESETS["paper"].pairs.memory_size, PRESETS["default"].pairs.memory_size
    (10, 0)
    """

    lr: float = 1e-2
    scaling: ScalingName | Scaling = "adagrad"
    momentum: float = 0.0
    nesterov: bool = False
    warm_up: int = 0
    averaging: float = 0.0
    cycle_length: int | Literal["auto"] | tuple[int, int] = 5
    pairs: PairOptions = PairOptions(
        memory_size=10,
        fisher_size=100,
        curvature="accumulated_fisher",
        test="absolute",
        eps=1e-4,
        scale="h0",
        damping=0.0,
        anchor_patience=20,
        direction="gram",
    )
    reject: RejectOptions = RejectOptions(
        "factor",
        factor=1.01,
        level=3.0,
        first_look=0,
        window=0,
        patience=3,
        growth=1.0,
        reset_momentum=True,
        reset_scaling=False,
    )


PAPER = Preset()
# No pairs: they cost more than they gave on the tasks of the study, in every form that was tried (D36). The numbers
# beside memory_size are for those who ask for some.
MODERN = Preset(
    lr=1.5e-3,
    scaling="adam",
    momentum=0.9,
    nesterov=True,
    warm_up=30,
    averaging=8.0,
    pairs=replace(PAPER.pairs, memory_size=0, fisher_size=50, damping=0.5, test="scale_free"),
    reject=replace(PAPER.reject, test="paired", first_look=32, window=10, growth=8.0),
)
KRONECKER = replace(MODERN, lr=4e-3, scaling="kronecker")
DEFAULT = KRONECKER

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"default": DEFAULT, "paper": PAPER, "modern": MODERN, "kronecker": KRONECKER}
)
"""All presets by name; ``"default"`` is one of the others."""


def preset_with(
    preset: str, pairs: PairOptions | None, reject: RejectName | RejectTest | RejectOptions | None, **given: Any
) -> Preset:
    """The preset of that name, with what was given in place of its own.

    >>> preset_with("paper", PairOptions(memory_size=5), None, momentum=None).pairs.memory_size
    5
    >>> preset_with("default", PairOptions(curvature="monitored"), None).pairs.memory_size
    3
    """
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {preset!r}")
    usual = PRESETS[preset]
    if pairs is not None and not isinstance(pairs, PairOptions):
        raise TypeError(f"pairs must be an adaqn.PairOptions, such as PairOptions(memory_size=5); got {pairs!r}")
    if reject is not None and not isinstance(reject, RejectOptions):
        reject = RejectOptions(test=reject)
    return replace(
        _over(usual, given),
        pairs=usual.pairs if pairs is None else _over(usual.pairs, _with_room(pairs, usual)),
        reject=usual.reject if reject is None else _over(usual.reject, vars(reject)),
    )


def _with_room(pairs: PairOptions, usual: Preset) -> dict[str, Any]:
    """Who says how pairs are to be made wants some, also where the preset has none."""
    given = dict(vars(pairs))
    if pairs.memory_size is None and usual.pairs.memory_size == 0 and pairs != PairOptions():
        given["memory_size"] = PAIRS_IF_ASKED
    return given


def given(value: T | None) -> T:
    """A field after a preset has filled in what was not given."""
    assert value is not None
    return value


def _over(usual: T, given: Mapping[str, Any]) -> T:
    known = {field.name for field in fields(usual)}  # type: ignore[arg-type]
    changes = {name: value for name, value in given.items() if name in known and value is not None}
    return replace(usual, **changes)  # type: ignore[type-var]
