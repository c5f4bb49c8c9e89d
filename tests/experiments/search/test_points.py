"""Which points a search tries: as many for every optimizer, and the paper's choices among them."""

import math
from dataclasses import replace

import pytest

from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.search.points import Point, configured, due
from adaqn.experiments.training.config import RunConfig

WITH_STEP_SIZE = [name for name, entry in TABLE.items() if not entry.whole]


def searched(search, optimizer, budget, loss):
    """All points of a search, round by round."""
    known = {}
    while points := due(search, optimizer, budget, known):
        assert not set(points) & set(known), "a point was tried twice"
        known |= {point: loss(point) for point in points}
    return known


@pytest.mark.parametrize("optimizer", WITH_STEP_SIZE)
@pytest.mark.parametrize("search", ["grid", "staged", "staged-ladder", "lr", "ladder"])
def test_every_optimizer_has_the_same_number_of_runs(optimizer, search):
    known = searched(search, optimizer, 20, lambda point: abs(point.lr - 2 * TABLE[optimizer].lr))
    assert len(known) == 20
    lrs = [point.lr for point in known]
    assert search.endswith("ladder") or max(lrs) / min(lrs) == pytest.approx(100)


@pytest.mark.parametrize("optimizer", WITH_STEP_SIZE)
def test_a_search_over_step_sizes_has_as_many_for_every_optimizer(optimizer):
    assert len({point.lr for point in due("lr", optimizer, 6, {})}) == 6


@pytest.mark.parametrize("search", ["grid", "staged", "staged-ladder", "lr", "ladder"])
def test_a_line_search_has_no_step_size_to_search_for(search):
    for optimizer in set(TABLE) - set(WITH_STEP_SIZE):
        assert list(searched(search, optimizer, 8, lambda point: 1.0)) == [Point(TABLE[optimizer].lr)]


def test_the_papers_other_choices_are_in_the_grid():
    options = {
        name: [configured(RunConfig(optimizer=name), p).options for p in due("grid", name, 20, {})]
        for name in ("adaqn", "adam")
    }
    assert {found["cycle_length"] for found in options["adaqn"]} == {2, 5, 10, 20}
    assert len({tuple(found["betas"]) for found in options["adam"]}) == 4


def test_an_option_that_was_asked_for_goes_before_the_one_that_is_searched():
    base = replace(RunConfig(optimizer="adaqn"), options={"cycle_length": 7})
    assert configured(base, Point(0.1, 3)).options == {"cycle_length": 7}


@pytest.mark.parametrize("search", ["staged", "staged-ladder"])
def test_the_second_stage_tries_the_other_choices_at_the_best_step_size(search):
    known = searched(search, "adaqn-paper", 9, lambda point: abs(point.lr - 0.03) + point.choice)
    first = [point for point in known if point.choice == 1]
    assert len(first) == 6
    best = min(first, key=known.get)
    assert {point for point in known if point.choice != 1} == {Point(best.lr, choice) for choice in (0, 2, 3)}


def test_a_staged_ladder_goes_beyond_a_fixed_row():
    """Where the best step size is 30 times smaller than the default, and larger ones diverge."""

    def loss(point):
        return math.inf if point.lr > 1e-3 else abs(math.log(point.lr / 3e-5)) + abs(point.choice - 2)

    known = searched("staged-ladder", "adam", 9, loss)
    best = min(known, key=known.get)
    assert best.lr == pytest.approx(3.16e-5)
    assert best.choice == 2
