"""One thing that is to be said, and how numbers are written in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from adaqn.explain.record import Record

WARNING, HINT, NOTE = "warning", "hint", "note"
"""Something works against the method; something may be better; something to know."""
FEWEST_CYCLES = 8
"""Below so many cycles a share of them says nothing."""


@dataclass(frozen=True)
class Finding:
    """What happened, and what to change."""

    name: str
    severity: str
    """``"warning"``: works against the method. ``"hint"``: may be better. ``"note"``: to know."""
    what: str
    change: str
    """Empty where there is nothing to change."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}" + (f"\n  → {self.change}" if self.change else "")


Check = Callable[[Record], Finding | None]


def number(value: float) -> str:
    """Three digits.

    >>> number(0.00123456), number(2.0), number(123456.0)
    ('0.00123', '2', '1.23e+05')
    """
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Two digits, or none for whole multiples of the thing itself.

    >>> percent(0.0042), percent(0.376), percent(12.0)
    ('0.42 %', '38 %', '1,200 %')
    """
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def size(count: int) -> str:
    """Bytes in the unit that suits them.

    >>> size(3_800_000_000), size(12_345), size(7)
    ('3.8 GB', '12.3 kB', '7 bytes')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"


def span(record: Record) -> str:
    """Which cycles are meant."""
    known, total = len(record.cycles), record.stats.cycles
    return f"all {known} cycles" if known == total else f"the last {known} cycles"


def among(record: Record) -> str:
    """The same after a "20 of"."""
    return span(record).removeprefix("all ")


def growth(rise: float) -> str:
    """How much a loss has grown, relative to its size.

    >>> growth(0.034), growth(99.0)
    ('grown by 3.4 %', 'grown to 100 times its size')
    """
    return f"grown by {percent(rise)}" if rise < 9.0 else f"grown to {1.0 + rise:,.0f} times its size"


def times(count: int, thing: str) -> str:
    """A number with its thing, in the plural where it is one.

    >>> times(1, "cycle"), times(3, "cycle"), times(0, "search")
    ('1 cycle', '3 cycles', '0 searches')
    """
    return f"{count:,} {thing}" + ("" if count == 1 else "es" if thing.endswith("ch") else "s")


def middle(values: Sequence[float | None]) -> float | None:
    """The median of those that are there."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def step_size(record: Record, factor: float = 1.0) -> str:
    """Lr of the groups as it is now, times a factor.

    A single number where all groups have the same.
    """
    return _range(record.settings.lr, factor)


def asked_size(record: Record, factor: float = 1.0) -> str:
    """The same of the step size that was asked for, whatever a schedule has made of it: advice is about that one."""
    return _range(record.settings.asked_lr, factor)


def schedule(record: Record) -> str:
    """What to say after ``asked_size``, where lr is another one now."""
    return " before its schedule" if record.settings.lr != record.settings.asked_lr else ""


def _range(step_sizes: Sequence[float], factor: float) -> str:
    sizes = sorted({lr * factor for lr in step_sizes})
    return number(sizes[0]) if len(sizes) == 1 else f"{number(sizes[0])} to {number(sizes[-1])}"
