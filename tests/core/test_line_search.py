"""Each search against its own conditions, on random lines; what is not finite, what is noise, and what a budget is."""

import math
import random
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.core.backtracking import Backtracking
from adaqn.core.hager_zhang import HagerZhang
from adaqn.core.line_search import Trial
from adaqn.core.line_search_names import LINE_SEARCHES
from adaqn.core.strong_wolfe import StrongWolfe, lowest_of_cubic
from lines import Counted, falling, parabola

EVERY = pytest.mark.parametrize("name", sorted(LINE_SEARCHES))
SLOPES = pytest.mark.parametrize("name", ["hager_zhang", "strong_wolfe"])
KINDS = st.sampled_from(["convex", "polynomial", "wavy"])
SEEDS = st.integers(0, 10**6)
DECADES = st.integers(-8, 8)


def holds(search, start, trial, noise=0.0):
    """The conditions of each search, written down once more; a hair is left for rounding."""
    hair = 1e-12 * (abs(start.value) + abs(trial.value))
    promised = trial.t * start.slope
    if not isinstance(search, HagerZhang):
        armijo = trial.value <= start.value + search.c1 * promised + noise + hair
        return armijo and (isinstance(search, Backtracking) or abs(trial.slope) <= -search.c2 * start.slope + hair)
    steep = trial.slope >= search.sigma * start.slope * (1 + 1e-12)
    wolfe = trial.value <= start.value + search.delta * promised + hair
    flat = trial.slope <= (2 * search.delta - 1) * start.slope * (1 + 1e-12)
    near = trial.value <= start.value + max(search.epsilon * abs(start.value), noise) + hair
    return steep and (wolfe or (flat and near))


@EVERY
@given(KINDS, SEEDS, DECADES, DECADES, st.floats(-5, 5))
def test_what_is_found_meets_the_conditions(name, kind, seed, scale, length, first):
    """At any scale of the loss and of the step, and from first lengths that are far too short or too long."""
    search = LINE_SEARCHES[name]
    line = Counted(falling(seed, kind), 10.0**scale, 10.0**length)
    start = line.at(0.0)
    found = search(line, start, 10.0 ** (length + first), budget=200)
    assert found.evaluations == len(line.asked)
    assert found.trial.t in (0.0, *line.asked)
    assert found.trial.value == line.at(found.trial.t).value
    if found.success:
        assert found.trial.t > 0.0
        assert holds(search, start, found.trial)
    else:
        assert found.trial.value == min([start.value, *(line.at(t).value for t in line.asked)])
        assert name == "strong_wolfe"
        assert kind != "convex"
        assert found.reason == "no point in 26 trials was acceptable"


@pytest.mark.parametrize("constants", [{"delta": 0.3, "sigma": 0.4}, {"rho": 2.0, "theta": 0.3, "gamma": 0.5}])
@given(KINDS, SEEDS, st.floats(-3, 3))
def test_hager_and_zhang_with_other_constants(constants, kind, seed, first):
    search = HagerZhang(**constants)
    line = Counted(falling(seed, kind))
    found = search(line, line.at(0.0), 10.0**first, budget=200)
    assert found.success
    assert holds(search, line.at(0.0), found.trial)


@given(KINDS, SEEDS, st.floats(-3, 3))
def test_a_tight_strong_wolfe_search_ends_at_a_stationary_point(kind, seed, first):
    search = StrongWolfe(c1=1e-6, c2=1e-3, most=100)
    line = Counted(falling(seed, kind))
    found = search(line, line.at(0.0), 10.0**first, budget=200)
    assert found.success
    assert abs(found.trial.slope) <= 1.001e-3 * abs(line.at(0.0).slope)


def test_within_noise_the_cubic_is_the_secant():
    a, b = Trial(1.0, 0.0, -3.0), Trial(3.0, 1e-3, 1.0)
    assert lowest_of_cubic(a, b, noise=2e-3) == pytest.approx(2.5)
    assert lowest_of_cubic(b, a, noise=2e-3) == pytest.approx(2.5)
    assert lowest_of_cubic(a, b, noise=5e-4) != pytest.approx(2.5, rel=1e-2)


@pytest.mark.parametrize("search", [StrongWolfe(most=5000), HagerZhang(most=5000), Backtracking(most=5000)])
def test_a_search_without_a_budget_ends_where_numbers_end(search):
    """A cliff in front of which every slope is too steep: the bracket shrinks to two neighbouring numbers."""
    steep = not isinstance(search, Backtracking)
    line = Counted(lambda t: (-t if steep else t, -1.0) if t < 1e-3 or not steep else (1.0, 1.0))
    found = search(line, line.at(0.0), 1.0, budget=10_000)
    assert not found.success
    assert found.evaluations < 1500
    assert found.trial.t == pytest.approx(1e-3 if steep else 0.0)


@EVERY
@pytest.mark.parametrize("beyond", [(math.inf, 1.0), (math.nan, math.nan), (-1e9, math.nan), (-math.inf, -1.0)])
@given(st.floats(-6, 2), st.floats(0.05, 20), st.floats(-3, 6))
def test_a_wall_that_is_not_finite_shortens_the_step(name, beyond, wall, minimum, first):
    """Whatever stands behind it, the step ends before the wall, and lower."""
    line = Counted(parabola(minimum), wall=10.0**wall, beyond=beyond)
    start = line.at(0.0)
    found = LINE_SEARCHES[name](line, start, 10.0**first, budget=100)
    assert found.trial.finite
    assert 0.0 < found.trial.t < line.wall
    assert found.trial.value < start.value
    assert found.evaluations == len(line.asked) <= 30
    if line.wall > 2.0 * minimum:
        assert found.success
    if name != "backtracking" and line.wall < 0.01 * minimum:  # the slope is too steep everywhere before the wall
        assert not found.success
        assert found.trial.t > 0.98 * line.wall
        assert found.reason == "the loss is not finite further on"


@EVERY
def test_islands_that_are_not_finite_are_never_returned(name):
    for seed in range(300):
        rng = random.Random(seed)
        smooth = falling(seed, "wavy")
        holes = [(a, a + rng.uniform(0, 1)) for a in (rng.uniform(0.01, 5) for _ in range(4))]

        def broken(t, smooth=smooth, holes=holes):
            return (math.nan, math.nan) if any(a < t < b for a, b in holes) else smooth(t)

        line = Counted(broken)
        found = LINE_SEARCHES[name](line, line.at(0.0), 10.0 ** rng.uniform(-2, 2), budget=60)
        assert found.trial.finite
        assert found.trial.t > 0.0
        assert found.trial.value < line.at(0.0).value


@EVERY
def test_where_nothing_is_finite_it_stays_at_the_start(name):
    line = Counted(parabola(1.0), wall=1e-300)
    start = line.at(0.0)
    found = LINE_SEARCHES[name](line, start, 1.0, budget=100)
    assert found.trial is start
    assert not found.success
    assert found.reason == "nothing finite was found"
    assert found.evaluations <= 60
    few = LINE_SEARCHES[name](line, start, 1.0, budget=100, resolution=1e-3)
    assert few.evaluations <= 5  # a step shorter than the resolution is worth no trial


@EVERY
@pytest.mark.parametrize("budget", range(1, 31))
def test_a_budget_is_exact(name, budget):
    """Of a search that has no end of its own the first ``budget`` trials are made, and the lowest is returned."""
    phi = {  # a straight line has no flat point; one that only rises is never low enough
        "strong_wolfe": lambda t: (-t, -1.0),
        "hager_zhang": lambda t: (-t, -1.0),
        "backtracking": lambda t: (t, -1.0),
    }[name]
    line, unlimited = Counted(phi), Counted(phi)
    start = line.at(0.0)
    found = LINE_SEARCHES[name](line, start, 1.0, budget=budget)
    ample = LINE_SEARCHES[name](unlimited, start, 1.0, budget=1000)
    assert line.asked == unlimited.asked[:budget]
    assert len(line.asked) == found.evaluations == min(budget, ample.evaluations)
    assert ample.evaluations > 20
    assert found.trial.t == (0.0 if name == "backtracking" else line.asked[-1])
    assert not found.success
    if budget < ample.evaluations:
        assert found.reason == "the budget of evaluations is spent"


@EVERY
@given(KINDS, SEEDS, st.integers(1, 12))
def test_no_budget_is_exceeded_on_any_function(name, kind, seed, budget):
    line, ample = Counted(falling(seed, kind)), Counted(falling(seed, kind))
    start = line.at(0.0)
    found = LINE_SEARCHES[name](line, start, 300.0, budget=budget)
    LINE_SEARCHES[name](ample, start, 300.0, budget=1000)
    assert found.evaluations == len(line.asked) <= budget
    assert line.asked == ample.asked[:budget]
    assert found.success == (len(ample.asked) <= budget)
    if not found.success:
        assert found.trial.value == min([start.value, *(line.at(t).value for t in line.asked)])


def near_rounding(error):
    """1 + a parabola that the last digits of a loss cannot show, evaluated with an error; its slope is right."""
    return Counted(lambda t: (1.0 + 1e-17 * (t - 1.0) ** 2 + (error if t > 0.0 else 0.0), 2e-17 * (t - 1.0)))


@pytest.mark.parametrize("first", [0.05, 1.0, 40.0])
def test_near_rounding_the_approximate_conditions_still_find_the_minimum(first):
    line = near_rounding(error=1e-15)
    found = HagerZhang()(line, line.at(0.0), first, budget=30)
    assert found.success
    assert found.reason == "approximate Wolfe"
    assert 0.05 <= found.trial.t <= 1.9
    strong = StrongWolfe()(line, line.at(0.0), first, budget=30)
    assert not strong.success
    assert strong.trial.t == 0.0
    assert strong.reason == "no lower value was found"


@SLOPES
@pytest.mark.parametrize("first", [0.02, 1.0, 40.0])
def test_what_is_within_noise_is_decided_by_slopes(name, first):
    """A loss that reads a hundredth higher at every other point says nothing about 1e-4 of decrease."""
    line = Counted(lambda t: (1.0 + 1e-4 * (t - 1.0) ** 2 + (0.01 if t > 0.0 else 0.0), 2e-4 * (t - 1.0)))
    search = LINE_SEARCHES[name]
    found = search(line, line.at(0.0), first, budget=30, noise=0.02)
    assert found.success
    assert holds(search, line.at(0.0), found.trial, noise=0.02)
    assert abs(found.trial.slope) <= 0.9 * 2e-4
    assert not search(line, line.at(0.0), first, budget=30).success


def test_noise_relaxes_armijo():
    line = Counted(lambda t: (0.1 * t, -1.0))
    assert not Backtracking()(line, line.at(0.0), 1.0, budget=30).success
    found = Backtracking()(line, line.at(0.0), 1.0, budget=30, noise=0.03)
    assert found.success
    assert 0.0 < found.trial.t <= 0.3


@EVERY
@given(st.floats(0.0, 2.0))
def test_what_is_lower_by_less_than_noise_is_no_reason_to_move(name, noise):
    """A search that its budget ends goes behind a minimum only if it is lower there beyond noise."""
    line = Counted(lambda t: (-0.01 * t, 1.0 if t > 0.0 else -1.0) if t < 50.0 else (1e3, 1.0))
    start = line.at(0.0)
    found = LINE_SEARCHES[name](line, start, 40.0, budget=1, noise=noise)
    if not found.success:
        assert found.trial is start or found.trial.value < start.value - noise


@SLOPES
def test_where_the_loss_still_falls_any_lower_value_is_one(name):
    """A budget may end before the first trial has grown; to stay would waste it, however noisy the loss."""
    line = Counted(lambda t: (1.0 - 1e-3 * t, -1e-3))
    found = LINE_SEARCHES[name](line, line.at(0.0), 1e-2, budget=2, noise=0.5)
    assert not found.success
    assert found.trial.t == max(line.asked)


@EVERY
def test_a_coarse_resolution_ends_the_search_early(name):
    """A cliff right behind the start: finer steps than the resolution are not tried."""
    line = Counted(lambda t: (-t, -1.0) if t < 1e-3 else (1.0, 1.0))
    fine = LINE_SEARCHES[name](line, line.at(0.0), 1.0, budget=100)
    assert fine.trial.t > 0.0
    line.asked.clear()
    coarse = LINE_SEARCHES[name](line, line.at(0.0), 1.0, budget=100, resolution=0.05)
    assert coarse.trial.t == 0.0
    assert coarse.reason == "no lower value was found"
    assert coarse.evaluations < fine.evaluations
    assert min(line.asked) > 1e-3


@SLOPES
def test_an_acceptable_first_length_costs_one_evaluation(name):
    line = Counted(parabola(1.0))
    found = LINE_SEARCHES[name](line, line.at(0.0), 1.2, budget=30)
    assert line.asked == [1.2]
    assert found.success


@pytest.mark.parametrize(
    "shrink, first, second",
    [(0.5, 4.0, 1.0), (0.5, 1000.0, 100.0), (0.25, 2.0, 0.5)],  # the minimum; the shortest; the longest allowed
)
def test_backtracking_goes_to_the_minimum_of_a_parabola_within_bounds(shrink, first, second):
    line = Counted(lambda t: (t * t - 2.0 * t, -2.0))
    Backtracking(shrink=shrink)(line, line.at(0.0), first, budget=2)
    assert line.asked == pytest.approx([first, second])


def test_backtracking_finds_the_minimum_of_a_cubic_by_its_third_trial():
    """The cubic through two values is then φ itself."""
    line = Counted(lambda t: (-t + 2.0 * t**2 - 0.15 * t**3, -1.0))
    found = Backtracking()(line, line.at(0.0), 10.0, budget=3)
    assert line.asked == pytest.approx([10.0, 1.0, (4.0 - math.sqrt(14.2)) / 0.9])
    assert found.success


@EVERY
@pytest.mark.parametrize(
    "start, words",
    [
        (Trial(0.0, 1.0, 0.0), "does not fall"),
        (Trial(0.0, 1.0, 2.0), "does not fall"),
        (Trial(0.0, math.nan, -1.0), "not finite at the start"),
    ],
)
def test_a_start_that_does_not_fall_costs_nothing(name, start, words):
    line = Counted(parabola(1.0))
    found = LINE_SEARCHES[name](line, start, 1.0, budget=10)
    assert line.asked == []
    assert found.trial is start
    assert not found.success
    assert words in found.reason


@EVERY
def test_the_gradients_of_dropped_trials_are_freed_while_it_searches(name):
    alive, most = weakref.WeakSet(), 0
    phi = (lambda t: (t, -1.0)) if name == "backtracking" else falling(3, "polynomial")

    def line(t):
        nonlocal most
        value, slope = phi(t)
        trial = Trial(t, value, slope, torch.zeros(3))
        alive.add(trial)
        most = max(most, len(alive))
        return trial

    search = {"strong_wolfe": StrongWolfe(c2=1e-3), "hager_zhang": HagerZhang(delta=1e-4, sigma=1e-3)}.get(
        name, LINE_SEARCHES[name]
    )
    found = search(line, Trial(0.0, *phi(0.0)), 1e4, budget=40)
    assert found.evaluations > 8
    assert most <= 6
    assert len(alive) == (found.trial.t > 0.0)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: StrongWolfe(c1=0.0), "c1 must be between 0.0 and 1.0, got 0.0"),
        (lambda: StrongWolfe(c1=0.5, c2=0.4), "c2 must be between 0.5 and 1.0, got 0.4"),
        (lambda: StrongWolfe(most=0), "most must be at least 1, got 0"),
        (lambda: HagerZhang(delta=0.5), "delta must be between 0.0 and 0.5, got 0.5"),
        (lambda: HagerZhang(sigma=1.0), "sigma must be between 0.1 and 1.0, got 1.0"),
        (lambda: HagerZhang(epsilon=-1.0), "epsilon must be a finite number of at least 0, got -1.0"),
        (lambda: HagerZhang(rho=1.0), "rho must be between 1.0 and inf, got 1.0"),
        (lambda: Backtracking(least=0.6), "least must be above 0.0 and at most 0.5, got 0.6"),
        (lambda: Backtracking(shrink=math.nan), "shrink must be between 0.0 and 1.0, got nan"),
    ],
)
def test_constants_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@EVERY
def test_a_budget_of_nothing_is_refused(name):
    line = Counted(parabola(1.0))
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        LINE_SEARCHES[name](line, line.at(0.0), 1.0, budget=0)
