"""A curve with its range over seeds, and the colour and dashes that a method has in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito's palette: told apart by colour-blind readers too. A name has the same colour in every figure.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
_FIXED = {
    **{"adaqn": 0, "adaqn-kronecker": 0, "adaqn-modern": 6, "adaqn-paper": 5},
    **{"adaqn-lbfgs": 0, "adaqn-bfgs": 0, "adaqn-ssbfgs": 0, "adaqn-ssbroyden": 0},
    **{"torch-lbfgs": 6, "adam-lbfgs": 4, "scipy-lbfgs": 7, "scipy-bfgs": 7, "torchmin-lbfgs": 5, "torchmin-bfgs": 5},
    **{"hf": 3, "kfac": 5},
    **{"adagrad": 4, "adam": 1, "soap": 2, "muon": 3, "shampoo": 5, "rmsprop": 6, "nag": 7},
    **{"adamw": 1, "soap-5": 2, "schedule-free": 4, "prodigy": 7},
}
_DASHES = {"adaqn-bfgs": ":", "adaqn-ssbfgs": "-.", "adaqn-ssbroyden": "--", "scipy-bfgs": "--", "torchmin-bfgs": "--"}
"""Of methods that share a colour with another in the figures of whole batches."""
_MANY = {
    **{"adaqn-paper": ":", "adaqn-modern": "--", "adam": "--", "soap-5": "--", "prodigy": "--", "shampoo": "-."},
    **{"nag": "-.", "adagrad": ":", "rmsprop": ":"},
}
"""The same in a study, where there are more methods than colours."""


@dataclass(frozen=True)
class Line:
    """The mean over seeds, and the lowest and highest of them."""

    label: str
    colour: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: str = "-"
    minor: bool = False
    """Thin, and without its range: one of many, for comparison."""


def line(
    label: str, shade: str, x: Sequence[float], values: dict[str, list[float]], style: str = "-", *, minor: bool = False
) -> Line:
    """From what :func:`adaqn.experiments.comparison.summary.over_seeds` says."""
    return Line(label, shade, x, values["mean"], values["low"], values["high"], style, minor)


def colour(optimizer: str) -> str:
    return PALETTE[_FIXED.get(optimizer, sum(optimizer.encode()) % len(PALETTE))]


def style(optimizer: str) -> str:
    return _DASHES.get(optimizer, "-")


def style_among_many(optimizer: str) -> str:
    return _MANY.get(optimizer, "-")
