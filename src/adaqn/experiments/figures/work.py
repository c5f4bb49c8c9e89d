"""What a figure still needs, and what there is of it: both read from the folder of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant, check_seeds
from adaqn.experiments.figures.kept import kept_runs, kept_trials, name_of
from adaqn.experiments.search.points import Point, configured, step_sizes
from adaqn.experiments.search.tune import CurveSearch, Tried, searches
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished, check_data, finished, folder_name, on_its_way
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.pace import Left, units
from adaqn.experiments.training.parallel import Job
from adaqn.experiments.training.timing import Cost, cost_of

Known = Callable[[Panel, Variant], RunConfig | None]
"""→ the run of that curve with the step size that was found for it; ``None`` if it is to be searched."""


class CurveWork:
    """One curve: the search for its step size, where it is not known, then its runs seed by seed."""

    def __init__(
        self, panel: Panel, variant: Variant, seeds: int, runs: Path, data_dir: Path | None,
        known: list[RunConfig] | CurveSearch, kept: Mapping[str, Finished],
    ) -> None:  # fmt: skip
        self.panel, self.variant, self.runs, self.data_dir, self.known = panel, variant, runs, data_dir, known
        self.seeds = min(seeds, variant.most_seeds)
        self._finished: dict[Path, Finished] = {}
        self._kept = kept

    @property
    def base(self) -> RunConfig:
        """A whole run of it, before its step size is known."""
        return self.variant.on(self.panel.base)

    def chosen(self) -> list[RunConfig]:
        """Its runs with seed 0: one, in a sweep one for each step size, and none while the search goes on."""
        if isinstance(self.known, list):
            return self.known
        best = self.known.best() if self.known.is_over() else None
        return [] if best is None else [configured(self.base, best)]

    def planned(self) -> list[Job]:
        """Its runs, those that are finished too; the group is the seed."""
        found = []
        for config in self.chosen():
            for seed in range(self.seeds):
                run = replace(config, seed=seed).complete()
                found.append(Job(run, self.runs / folder_name(run), (seed,), self.panel.cell))
        return found

    def due(self, place: int) -> list[Job]:
        """Seed by seed, and panel by panel in each: an interruption leaves all methods of a panel side by side."""
        rank = self.variant.rank
        if isinstance(self.known, CurveSearch) and (jobs := self.known.jobs()):
            return [replace(job, group=(rank, 0, place, 0), cell=self.panel.cell) for job in jobs]
        waiting = [job for job in self.planned() if self.finished(job) is None]
        return [replace(job, group=(rank, *job.group, place, 1)) for job in waiting]

    def finished(self, job: Job) -> Finished | None:
        if (known := self._kept.get(name_of(job.config))) is not None:
            return known
        if job.folder not in self._finished and (found := finished(job.folder)) is not None:
            check_data(found, job.config, self.data_dir)
            self._finished[job.folder] = found
        return self._finished.get(job.folder)

    def left(self) -> Left:
        """What is to do at most, in epochs or steps of its runs."""
        cell, optimizer = self.panel.cell, self.variant.optimizer
        if self.chosen():
            jobs = [job for job in self.planned() if self.finished(job) is None]
            parts = [
                (1.0 - (found.share if (found := on_its_way(job.folder)) else 0.0)) * units(job.config) for job in jobs
            ]
            return Left(cell, optimizer, len(jobs), sum(parts))
        assert isinstance(self.known, CurveSearch)
        points = max(0, (self.known.count or self.known.budget) - self.known.finished_runs())
        of_search, of_runs = points * units(self.known.base), self.seeds * units(self.base)
        return Left(cell, optimizer, points + self.seeds, of_search + of_runs)

    def curve(self) -> Curve:
        """As far as its runs are."""
        jobs = self.planned()
        there = [found for job in jobs if (found := self.finished(job) or on_its_way(job.folder)) is not None]
        drawn = tuple(run for run in there if len(run.metrics) > 1)  # one point is no line
        return Curve(self.panel, self.variant, drawn, self._note(jobs, there))

    def _note(self, jobs: list[Job], there: list[Finished]) -> str:
        """What is missing; nothing where all is there."""
        if not jobs and isinstance(self.known, CurveSearch):
            tried = self.known.finished_runs()
            return f"search: {tried} of {self.known.count or self.known.budget} runs" if tried else "not run"
        done = sum(run.share == 1.0 for run in there)
        if done == len(jobs):
            return ""
        note = f"{done} of {self.seeds} seeds" if len(jobs) == self.seeds else f"{done} of {len(jobs)} runs"
        begun = [run for run in there if run.share < 1.0]
        if not begun:
            return "not run" if len(jobs) == 1 else note
        next_one = max(begun, key=lambda run: run.share)
        count, word = units(self.base), "steps" if self.base.steps else "epochs"
        part = f"{next_one.share * count:.3g} of {count:g} {word}"
        return part if len(jobs) == 1 else f"{note}, {part} of the {'next' if done else 'first'}"


class FigureWork:
    """All curves of a figure.

    Args:
        spec: the figure.
        seeds: runs of each curve.
        runs: the folder of the runs.
        data_dir: of the data sets.
        known: the step sizes that were found before.
        kept: the folder of its small result files. What they hold is not run again, wherever it was made.
        searched: another such folder. Of its files only the trials of searches count.
    """

    def __init__(
        self,
        spec: Comparison,
        seeds: int,
        runs: Path,
        data_dir: Path | None = None,
        known: Known | None = None,
        kept: Path | None = None,
        searched: Path | None = None,
    ) -> None:
        check_seeds(seeds)
        self.spec = spec
        self.curves: list[CurveWork] = []
        for panel in spec.panels:
            before = kept_runs(panel, kept) if kept else {}
            folders = [folder for folder in (searched, kept) if folder is not None]
            for variant, found in _known(spec, panel, runs, data_dir, known, folders).items():
                self.curves.append(CurveWork(panel, variant, seeds, runs, data_dir, found, before))

    def due(self) -> list[Job]:
        cells = [panel.cell for panel in self.spec.panels]
        curves = [curve.due(cells.index(curve.panel.cell)) for curve in self.curves]
        jobs = [job for turn in zip_longest(*curves) for job in turn if job is not None]  # searches side by side too
        once: dict[Path, Job] = {}
        for job in sorted(jobs, key=lambda job: job.group):
            once.setdefault(job.folder, job)  # two curves may share a run
        return list(once.values())

    def left(self) -> list[Left]:
        return [curve.left() for curve in self.curves]


def _known(
    spec: Comparison, panel: Panel, runs: Path, data_dir: Path | None, known: Known | None, folders: list[Path]
) -> dict[Variant, list[RunConfig] | CurveSearch]:
    found: dict[Variant, list[RunConfig] | CurveSearch] = {}
    if spec.sweep is not None:
        for variant in panel.variants:
            sizes = step_sizes(variant.optimizer, spec.sweep.count, spec.sweep.decades)
            found[variant] = [replace(variant.on(panel.base), lr=lr) for lr in sizes]
        return found
    base = (panel.searched or panel.base).complete()
    tuned = {variant: _settled(panel, variant, known) for variant in panel.variants}
    wanted = {variant.name: variant.on(base) for variant, config in tuned.items() if config is None}
    before: dict[str, dict[Point, Tried]] = {}
    for folder in folders:
        for name, trials in kept_trials(panel, folder).items():
            before.setdefault(name, {}).update(trials)
    searched = searches(wanted, panel.search, panel.budget, runs, data_dir, before) if wanted else {}
    return {variant: searched[variant.name] if config is None else [config] for variant, config in tuned.items()}


def _settled(panel: Panel, variant: Variant, known: Known | None) -> RunConfig | None:
    """The run of that curve, if its step size is given or was found before."""
    if variant.lr is not None:
        return variant.on(panel.base)
    return None if known is None else known(panel, variant)


def costs(work: FigureWork, data_dir: Path | None) -> Iterator[Cost]:
    """What each curve that is not finished will take, from a few real steps of it: its search and its runs."""
    for curve in work.curves:
        left, names = curve.left(), (curve.panel.title, curve.variant.label)
        if not left.runs:
            yield Cost(*names, 0, 0.0)
            continue
        example = open_run((curve.chosen() or [curve.base])[0], None, data_dir)
        whole = cost_of(*names, left.runs, example)
        share = left.units / (left.runs * units(curve.base))  # a run of a search may be shorter
        yield replace(whole, seconds_per_run=share * whole.seconds_per_run)
