"""SVG pictures that turn dark with the page they are shown in."""

from __future__ import annotations

from typing import Any

PAPER, INK, FAINT = "#ffffff", "#22252a", "#c9ccd1"
"""What the pictures are drawn with: the background, text and axes, the grid."""
DARK = {PAPER: "#1e2129", INK: "#dfe2e8", FAINT: "#3a3f4a", "#000000": "#dfe2e8"}
"""The same, and black curves, on a dark page."""
UNSAID = ('[style*="stroke: #000000"]:not([style*="fill:"])', '[style^="fill-opacity"]')
"""Marks and ranges of black curves: matplotlib does not write that they are filled with black, since all is."""
LIGHTER = 0.25
"""Of the way to white, for the other curves."""
RC: dict[Any, str] = {
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "grid.color": FAINT, "figure.facecolor": PAPER, "axes.facecolor": "none", "savefig.facecolor": PAPER,
}  # fmt: skip
"""Settings of matplotlib."""


def lighter(colour: str) -> str:
    """The colour for a dark page.

    >>> lighter("#0072B2"), lighter("#000000")
    ('#4095c5', '#dfe2e8')
    """
    known = DARK.get(colour.lower())
    if known is not None:
        return known
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + LIGHTER * (255 - part)):02x}" for part in parts)


def with_dark_mode(svg: str, colours: list[str]) -> str:
    """The same picture with a rule for each of its colours, where the reader's page is dark.

    Programs that know no such rules show it as it was drawn.
    """
    rules = []
    for colour in dict.fromkeys([*DARK, *(c.lower() for c in colours)]):
        for what in ("fill", "stroke"):
            rules.append(f'[style*="{what}: {colour}"]{{{what}: {lighter(colour)} !important}}')
    rules += [f"{what}{{fill: {lighter('#000000')} !important}}" for what in UNSAID]
    style = "@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}"
    return svg.replace("</style>", f"\n{style}\n</style>", 1)
