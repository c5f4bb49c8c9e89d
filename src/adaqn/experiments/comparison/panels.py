"""What is compared, as data: panels with their curves. From it the runs are planned, made or reused, and gathered.

``adaqn compare`` is one panel, a figure of the paper several, the study one for each of its cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.averages import AVERAGED
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished
from adaqn.experiments.training.parallel import RunListener, run_all

MOST_SEEDS = 1_000
"""Of a curve: all runs are planned before the first is made."""


@dataclass(frozen=True)
class Variant:
    """A curve: an optimizer with options of its own."""

    name: str
    """By which its step size is found in the tuning file."""
    optimizer: str
    label: str
    options: tuple[tuple[str, Any], ...] = ()
    lr: float | None = None
    """Given, it is not searched; by default the one that was tuned, or the optimizer's own."""
    rank: int = 0
    """All curves of a lower one are run before."""
    most_seeds: int = MOST_SEEDS
    length: float = 1.0
    """Its steps, as a part of the others': less than 1 for a method whose step takes a hundred gradients."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Of its runs, in the place of the panel's: a schedule, an average."""
    at_average: bool = False
    """Is it judged and drawn at a growing average, its own or the run's?"""

    @property
    def prefix(self) -> str:
        """Of the losses that it is judged by."""
        return AVERAGED if self.at_average else ""

    def on(self, base: RunConfig) -> RunConfig:
        own = {"optimizer": self.optimizer, "lr": self.lr, "options": dict(self.options), **dict(self.settings)}
        return replace(self._shortened(base), **own)

    def _shortened(self, base: RunConfig) -> RunConfig:
        """With as many evaluations in the whole run."""
        if self.length == 1.0:
            return base
        base = replace(base, evaluations=round(base.evaluations / self.length))
        if base.steps is not None:
            return replace(base, steps=max(1, round(self.length * base.steps)))
        return replace(base, epochs=self.length * base.epochs)


def as_it_comes(optimizer: str) -> Variant:
    """An optimizer without options."""
    return Variant(optimizer, optimizer, entry(optimizer).label)


@dataclass(frozen=True)
class Panel:
    """The same task, model, data and length for every curve, and the same budget of its search."""

    title: str
    base: RunConfig
    variants: tuple[Variant, ...]
    search: str = "staged"
    budget: int = 9
    """Runs of each curve in the search: for adaQN and Adam six step sizes, then three values of L or of the betas."""
    name: str = ""
    searched: RunConfig | None = None
    """What the search runs; by default the whole run."""
    published_epochs: float | None = None
    """Those of the paper, if pictures are to say how much of them there is."""

    @property
    def cell(self) -> str:
        """Its name in tables of step sizes, and among other panels."""
        return self.name or f"{self.base.task}/{self.base.data}/{self.base.model}"

    @property
    def length_note(self) -> str:
        """How much of the paper's training it is; nothing if it is all of it."""
        if self.published_epochs is None or self.base.steps or self.base.epochs >= self.published_epochs:
            return ""
        return f"{self.base.epochs:g} of the paper's {self.published_epochs:g} epochs"

    @property
    def file_name(self) -> str:
        """Of what is kept of it, without an ending."""
        return self.cell.replace("/", "-")


@dataclass(frozen=True)
class View:
    """What is drawn of a panel, and against what."""

    metric: str = "test_loss"
    against: str = "epoch"
    wide: bool = False
    """Do methods differ by orders of magnitude? Then axes may be logarithmic."""
    so_far: bool = False
    """Where the validation loss was lowest until then, instead of now? For losses that jump; they are thin lines."""


@dataclass(frozen=True)
class Sweep:
    """Step sizes in equal ratios, so many decades above and below the optimizer's default."""

    count: int
    decades: float


@dataclass(frozen=True)
class Comparison:
    """Panels side by side, and what is drawn of each."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    views: tuple[View, ...] = (View(),)
    columns: int = 3
    apart: bool = False
    """Is every panel, with all its views, a picture of its own?"""
    downwards: bool = False
    """Do panels fill one column after the other, and not one row after the other?"""
    sweep: Sweep | None = None
    """Every curve at many step sizes, drawn against them, instead of at its tuned one against the epoch."""
    runs_of: str = ""
    """Another comparison of which this one is a view."""


@dataclass(frozen=True)
class Planned:
    """One run, and the curve that it belongs to."""

    panel: Panel
    variant: Variant
    config: RunConfig


@dataclass(frozen=True)
class Curve:
    """The runs of a variant as far as they are: several seeds, and in a sweep several step sizes."""

    panel: Panel
    variant: Variant
    runs: tuple[Finished, ...]
    note: str = ""
    """What of it is missing."""

    @property
    def finished(self) -> tuple[Finished, ...]:
        return tuple(run for run in self.runs if run.share == 1.0)

    @property
    def shown(self) -> tuple[Finished, ...]:
        """Those that a mean is over: the finished ones, or the one that is furthest."""
        return self.finished or tuple(sorted(self.runs, key=lambda run: run.share)[-1:])

    def by_step_size(self) -> dict[float, list[Finished]]:
        found: dict[float, list[Finished]] = {}
        for run in self.shown:
            found.setdefault(run.result["config"]["lr"], []).append(run)
        return found


def with_optimizers(comparison: Comparison, names: list[str]) -> Comparison:
    """Only these curves: a panel's own of that name, at once and with all seeds, or optimizers as they come."""

    def chosen(panel: Panel) -> Panel:
        own = {variant.name: replace(variant, rank=0, most_seeds=MOST_SEEDS) for variant in panel.variants}
        if comparison.sweep is not None or len({variant.optimizer for variant in panel.variants}) < len(own):
            raise UserError(f"the curves of {comparison.name} are fixed: it compares variants of one method")
        if comparison.runs_of and (others := set(names) - set(own)):
            raise UserError(
                f"{comparison.name} shows runs of {comparison.runs_of} by {', '.join(own)}, not {', '.join(others)}"
            )
        return replace(panel, variants=tuple(own.get(name) or as_it_comes(name) for name in names))

    return replace(comparison, panels=tuple(chosen(panel) for panel in comparison.panels))


def with_panels(comparison: Comparison, wanted: list[str]) -> Comparison:
    """Only the panels whose title or cell contains one of the words."""
    kept = tuple(panel for panel in comparison.panels if any(_matches(panel, word) for word in wanted))
    if not kept:
        raise no_panel([comparison], wanted)
    return replace(comparison, panels=kept)


def unknown_panels(comparisons: Sequence[Comparison], wanted: list[str]) -> list[str]:
    """The words that are in no title and no cell."""
    every = [panel for comparison in comparisons for panel in comparison.panels]
    return [word for word in wanted if not any(_matches(panel, word) for panel in every)]


def no_panel(comparisons: Sequence[Comparison], words: list[str]) -> UserError:
    names = ", ".join(comparison.name for comparison in comparisons)
    titles = "; ".join(dict.fromkeys(panel.title for comparison in comparisons for panel in comparison.panels))
    return UserError(
        f"no panel of {names} is called {', '.join(word or repr(word) for word in words)}: it has {titles}"
    )


def _matches(panel: Panel, word: str) -> bool:
    return bool(word) and word.lower() in f"{panel.title} {panel.cell}".lower()


def with_sizes(comparison: Comparison, **changes: Any) -> Comparison:
    """Every run with these changes, for instance fewer epochs."""
    given = {name: value for name, value in changes.items() if value is not None}
    if "epochs" in given:
        given["steps"] = None

    def changed(panel: Panel) -> Panel:
        base, searched = replace(panel.base, **given), panel.searched
        if searched is not None:  # never longer than the run that it is for
            shorter = {"epochs": min(searched.epochs, given["epochs"])} if "epochs" in given else {}
            searched = replace(searched, **{**given, **shorter})
        return replace(panel, base=base, searched=searched)

    return replace(comparison, panels=tuple(changed(panel) for panel in comparison.panels))


def check_seeds(count: int) -> int:
    if not 1 <= count <= MOST_SEEDS:
        raise UserError(f"seeds must be from 1 to {MOST_SEEDS}, got {count}")
    return count


def plan(comparison: Comparison, seeds: int) -> list[Planned]:
    """Every run at the step size of its curve, each once."""
    planned: dict[str, Planned] = {}
    for panel in comparison.panels:
        for variant in panel.variants:
            for seed in range(check_seeds(seeds)):
                run = replace(variant.on(panel.base), seed=seed).complete()
                planned.setdefault(run.identity(), Planned(panel, variant, run))
    return list(planned.values())


def run_planned(
    planned: list[Planned], out: Path, workers: int, data_dir: Path | None, listener: RunListener | None
) -> list[Curve]:
    """Run what is not there yet; returns the curves in the order of the plan."""
    done = run_all([p.config for p in planned], out / "runs", workers, data_dir, listener)
    curves: dict[tuple[str, str], Curve] = {}
    for p, run in zip(planned, done, strict=True):
        name = (p.panel.cell, p.variant.name)
        known = curves.get(name, Curve(p.panel, p.variant, ()))
        curves[name] = replace(known, runs=(*known.runs, run))
    return list(curves.values())
