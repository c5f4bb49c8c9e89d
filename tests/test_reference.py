"""The optimizer walks the same path as the reference, which is the paper line by line."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn import AccumulatedFisher, Adagrad, Outcome, PairOptions, RejectOptions
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


def ours(direction, *, lr=None, L=None, eps=1e-4, m_L=None, m_F=100, batch_size=1, **numbers):
    """The reference's options as the optimizer's; what the reference calls ``None`` is 0 there."""
    given = {name: value or 0 for name, value in numbers.items()}
    pairs = PairOptions(
        memory_size=m_L, curvature=AccumulatedFisher(m_F, batch_size=batch_size), eps=eps, direction=direction,
        anchor_patience=given.get("anchor_patience"),
    )  # fmt: skip
    reject = RejectOptions(factor=given.get("gamma"), patience=given.get("reject_patience"))
    return {"lr": lr, "cycle_length": L, "scaling": Adagrad(eps=eps), "pairs": pairs, "reject": reject}


def both_paths(steps, *, bad=(), judge=Judge, reference=None, direction="gram", problem=None, **options):
    """(reference path, optimizer path, outcomes of each, optimizer) for the same gradients."""
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
        opt.step()
        path.append(model.vector().clone())
    theirs = [iterate.outcome for iterate in iterates if iterate.outcome]
    return torch.stack([i.w for i in iterates]), torch.stack(path), theirs, [e.outcome for e in events], opt


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
    assert set(counts) == set(Outcome), counts
    assert counts[Outcome.SKIPPED] >= 5
    assert counts[Outcome.REJECTED] >= 5
    assert counts[Outcome.STORED] >= 20
    assert opt.stats.nonfinite == 4
    assert (opt.stats.stored, opt.stats.skipped, opt.stats.rejected) == (
        counts[Outcome.STORED],
        counts[Outcome.SKIPPED],
        counts[Outcome.REJECTED],
    )


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
