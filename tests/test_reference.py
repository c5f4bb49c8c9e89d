"""The optimizer walks the same path as the reference, which is the paper line by line."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn import AccumulatedFisher, Adagrad, Monitor, Outcome, PairOptions, RejectOptions, RotatingMonitor
from adaqn.core.acceptance import PairedTest
from adaqn.reference import adaqn
from oracles import NoisyValley, Vector, as_printed


class Judge:
    """The monitored loss for both: of a vector for the reference, of a model for the optimizer."""

    def __init__(self, problem, model=None):
        self.problem, self.model, self.shift = problem, model, 0.0

    def __call__(self, w=None):
        return float(self.problem.loss(self.model.vector() if w is None else w)) + self.shift


class Rotating(Judge):
    def advance(self):
        self.shift = 0.05 - self.shift


def ours(direction, *, lr=None, L=None, eps=1e-4, m_L=None, m_F=100, batch_size=1, scale="h0", c=0.0, **numbers):
    """The reference's options as the optimizer's; what the reference calls ``None`` is 0 there."""
    given = {name: value or 0 for name, value in numbers.items()}
    pairs = PairOptions(
        memory_size=m_L, curvature=AccumulatedFisher(m_F, batch_size=batch_size), eps=eps, direction=direction,
        scale=scale, anchor_patience=given.get("anchor_patience"),
    )  # fmt: skip
    reject = RejectOptions(factor=given.get("gamma"), patience=given.get("reject_patience"), growth=given.get("growth"))
    lr = lr(0) if callable(lr) else lr
    return {"lr": lr, "cycle_length": L, "scaling": Adagrad(eps=eps), "pairs": pairs, "reject": reject, "averaging": c}


def both_paths(steps, *, bad=(), judge=Judge, reference=None, direction="gram", problem=None, shown=None, **options):
    """(reference path, optimizer path, outcomes of each, optimizer) of the same gradients; ``shown`` is of averages."""
    problem = problem or NoisyValley()

    def gradient(w, k):
        g = problem.gradient(w, k)
        return g * math.nan if k in bad else g

    run = adaqn(problem.w0, gradient, judge(problem), **{**options, **(reference or {})})
    iterates = list(itertools.islice(run, steps))

    model, events = Vector(problem.w0), []
    opt = as_printed(
        model.parameters(), monitor=judge(problem, model), on_cycle=events.append, **ours(direction, **options)
    )
    path = []
    for k in range(steps):
        model.set_gradient(gradient(model.vector(), k))
        if callable(options.get("lr")):
            opt.param_groups[0]["lr"] = options["lr"](k)
        opt.step()
        path.append(model.vector().clone() if shown is None else shown(model, opt))
    theirs = [iterate.outcome for iterate in iterates if iterate.outcome]
    return (
        torch.stack([i.w if shown is None else i.x for i in iterates]),
        torch.stack(path),
        theirs,
        [e.outcome for e in events],
        opt,
    )


EVERYTHING = {"lr": 0.1, "L": 4, "m_L": 5, "m_F": 9, "eps": 1.0, "gamma": 1.02}


@pytest.mark.parametrize("direction", ["gram", "two_loop"])
@pytest.mark.parametrize("judge", [Judge, Rotating])
def test_trajectory_equals_reference(direction, judge):
    theirs, ours, expected, outcomes, opt = both_paths(
        600, bad={7, 8, 90, 401}, judge=judge, direction=direction, problem=NoisyValley(noise=1.0), **EVERYTHING
    )
    assert (theirs - ours).abs().max() < 1e-10
    assert outcomes == expected
    counts = Counter(outcomes)
    assert set(counts) == set(Outcome) - {Outcome.KEPT}, counts
    assert counts[Outcome.SKIPPED] >= 5
    assert counts[Outcome.REJECTED] >= 5
    assert counts[Outcome.STORED] >= 20
    assert opt.stats.nonfinite == 4
    assert (opt.stats.stored, opt.stats.skipped, opt.stats.rejected) == (
        counts[Outcome.STORED],
        counts[Outcome.SKIPPED],
        counts[Outcome.REJECTED],
    )


def falling(k):
    """A schedule that ends at zero, after a jump."""
    return (0.1 if k < 100 else 0.3) * max(0.0, 1.0 - k / 300)


@pytest.mark.parametrize("m_L", [0, 5])
def test_steps_that_grow_equal_those_of_the_reference(m_L):
    """D37, with rejected cycles and halvings."""
    problem = NoisyValley(noise=3.0)
    numbers = {**EVERYTHING, "lr": 0.05, "m_L": m_L, "gamma": 1.002, "growth": 6.0, "reject_patience": 2}
    iterates = list(itertools.islice(adaqn(problem.w0, problem.gradient, Judge(problem), **numbers), 600))
    model, events = Vector(problem.w0), []
    options = ours("gram", **numbers)
    opt = as_printed(model.parameters(), monitor=Judge(problem, model), on_cycle=events.append, **options)
    for k, iterate in enumerate(iterates):
        model.set_gradient(problem.gradient(model.vector(), k))
        opt.step()
        assert (model.vector() - iterate.w).abs().max() < 1e-9
        assert opt.stats.step_multiplier == iterate.step_multiplier
    multipliers = [event.step_multiplier for event in events]
    assert Outcome.REJECTED in {event.outcome for event in events}
    assert max(multipliers) > 2.0
    assert min(multipliers[multipliers.index(max(multipliers)) :]) < 0.5 * max(multipliers)


@pytest.mark.parametrize("scale", ["stored", "current"])
def test_trajectory_equals_reference_with_pairs_of_the_step_size_and_h0(scale):
    """D34, while a schedule changes the step size by a factor of three, and to nothing."""
    theirs, ours, expected, outcomes, _ = both_paths(
        320, bad={7, 90}, problem=NoisyValley(noise=1.0), **{**EVERYTHING, "lr": falling, "eps": 1e-4}, scale=scale
    )
    assert outcomes == expected
    assert Outcome.STORED in outcomes
    assert Outcome.REJECTED in outcomes
    assert (theirs - ours).abs().max() < 1e-10


@pytest.mark.parametrize("m_L", [0, 5])
def test_the_growing_average_equals_that_of_the_reference(m_L):
    """D33, with rejected cycles, gradients that are not finite, and without pairs at all."""
    problem, options = NoisyValley(noise=1.0), {**EVERYTHING, "m_L": m_L, "c": 8.0, "gamma": 1.0}

    def shown(model, opt):
        with opt.averaged():
            return model.vector().clone()

    theirs, ours, expected, outcomes, _ = both_paths(200, bad={7, 8, 90}, problem=problem, shown=shown, **options)
    assert outcomes == expected
    assert (Outcome.KEPT if m_L == 0 else Outcome.STORED) in outcomes
    assert Outcome.REJECTED in outcomes
    begun = options["L"]  # before the first average the weights are shown
    assert (theirs - ours)[begun:].abs().max() < 1e-10


def test_trajectory_equals_reference_at_the_papers_defaults():
    theirs, ours, expected, outcomes, _ = both_paths(400)
    assert (theirs - ours).abs().max() < 1e-10
    assert outcomes == expected


def test_trajectory_equals_reference_with_the_equations_normalisation():
    theirs, ours, expected, outcomes, _ = both_paths(200, batch_size=32, lr=0.02)
    assert (theirs - ours).abs().max() < 1e-10
    assert outcomes == expected


def test_trajectory_equals_reference_when_steps_are_far_too_large():
    """D11: rejections with an empty memory halve the steps, and accepted cycles give them back."""
    theirs, ours, expected, outcomes, opt = both_paths(
        200, lr=3.0, L=3, gamma=1.0, reject_patience=1, problem=NoisyValley(noise=1.0)
    )
    assert outcomes == expected
    assert opt.stats.step_multiplier < 0.1
    assert ((theirs - ours).abs() / theirs.abs().clamp(min=1.0)).max() < 1e-10


@pytest.mark.filterwarnings("ignore:50 cycles in a row")
@given(
    cycle_length=st.integers(1, 6),
    memory_size=st.integers(1, 4),
    fisher_size=st.integers(1, 8),
    eps=st.sampled_from([1e-4, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([1.0, 1.01, 1.2]),
    bad=st.sets(st.integers(0, 59), max_size=6),
    anchor_patience=st.sampled_from([None, 1, 3]),
    reject_patience=st.sampled_from([None, 1, 2]),
    lr=st.sampled_from([0.05, 0.3, 1.0]),
    seed=st.integers(0, 20),
)
def test_any_mixture_of_outcomes_equals_reference(cycle_length, memory_size, fisher_size, bad, seed, **options):
    options |= {"L": cycle_length, "m_L": memory_size, "m_F": fisher_size}
    theirs, ours, expected, outcomes, _ = both_paths(60, bad=bad, problem=NoisyValley(seed=seed), **options)
    assert outcomes == expected
    assert ((theirs - ours).abs() / theirs.abs().clamp(min=1.0)).max() < 1e-8


class Sample:
    """Losses of single examples, each a valley around a place of its own; with several sets they take turns."""

    def __init__(self, problem, sets):
        generator = torch.Generator().manual_seed(5)
        self.problem, self.turn = problem, 0
        self.sets = [torch.randn(64, problem.n, dtype=torch.float64, generator=generator) for _ in range(sets)]
        if sets > 1:
            self.advance = self._advance

    def _advance(self):
        self.turn += 1

    def losses(self, w, places):
        away = w - places
        return 0.5 * ((away @ self.problem.A) * away).sum(1)

    def __call__(self, w):
        return self.losses(w, self.sets[self.turn % len(self.sets)])


class Valleys(Vector):
    def __init__(self, w, sample):
        super().__init__(w)
        self.sample = sample

    def forward(self, places):
        return self.sample.losses(self.vector(), places)


@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("first_look", [0, 8, 32])
def test_verdicts_on_single_examples_equal_the_reference(first_look, sets):
    """D35: the reference evaluates everything everywhere, the optimizer only what a verdict needs. D23 on the way."""
    problem, level = NoisyValley(noise=2.0), 1.0
    sample = Sample(problem, sets)
    numbers = {"lr": 0.3, "L": 2, "m_L": 3, "m_F": 6, "eps": 8.0, "reject_patience": 2}
    run = adaqn(
        problem.w0, problem.gradient, Sample(problem, sets), paired=PairedTest(level), first_look=first_look, **numbers
    )
    iterates = list(itertools.islice(run, 300))

    model, events = Valleys(problem.w0, sample), []
    batches = [(places, places) for places in sample.sets]
    kind, data = (Monitor, batches[0]) if sets == 1 else (RotatingMonitor, batches)
    options = ours("gram", **numbers)
    options["reject"] = RejectOptions("paired", level=level, first_look=first_look, patience=numbers["reject_patience"])
    monitor = kind(model, lambda output, target: output, data)
    opt = as_printed(model.parameters(), monitor=monitor, on_cycle=events.append, **options)
    for k, iterate in enumerate(iterates):
        model.set_gradient(problem.gradient(model.vector(), k))
        opt.step()
        assert (model.vector() - iterate.w).abs().max() < 1e-9 * max(1.0, float(iterate.w.abs().max()))
        assert opt.stats.step_multiplier == iterate.step_multiplier
    assert [event.outcome for event in events] == [iterate.outcome for iterate in iterates if iterate.outcome]
    assert set(Counter(event.outcome for event in events)) == set(Outcome) - {Outcome.KEPT}
    if first_look:
        assert 10 < opt.stats.by_first_look < opt.stats.cycles - 10
