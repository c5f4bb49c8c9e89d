"""A verdict in two looks: how often it is settled early, and how seldom that hides a worse cycle (D35)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.core.acceptance import PairedTest
from adaqn.core.looks import EVERY, MISSED, is_by_all, margin, missed, most_lenient

RUNS, EXAMPLES, FIRST, LEVEL = 8000, 128, 32, 3.0
NOISE = 4.0 * math.sqrt(MISSED / RUNS)
"""Four standard errors of a share of about 0.02 among so many runs."""
EFFECTS = (-1.0, 0.0, 2.0, 2.5, 3.0, 3.25, 3.5, 3.75, 4.0, 4.5, 5.0, 7.0)
"""By how many standard errors of all examples a cycle is worse."""


def draws(kind: str) -> torch.Tensor:
    """Paired differences of many cycles that changed nothing: rows with mean 0 and variance 1."""
    torch.manual_seed(0)
    shape = (RUNS, EXAMPLES)
    if kind == "normal":
        found = torch.randn(shape)
    elif kind in ("t3", "t5"):
        found = torch.distributions.StudentT(float(kind[1:])).sample(shape)
    elif kind == "a few get much worse":  # one in ten, by ten times the noise of the others
        found = 0.1 * torch.randn(shape) + (torch.rand(shape) < 0.1)
    else:
        found = (torch.randn(shape).exp() - math.exp(0.5)) * (1.0 if kind == "long tail up" else -1.0)
    return (found - found.mean()) / found.std()


def errors(differences: torch.Tensor) -> torch.Tensor:
    """The mean of each row in its standard errors."""
    return differences.mean(1) / (differences.std(1) / math.sqrt(differences.shape[1]))


def rates(unchanged: torch.Tensor, effect: float) -> tuple[float, float, float]:
    """(Rejected by all examples, rejected in two looks, settled by the first) among cycles so much worse."""
    differences = unchanged + effect / math.sqrt(EXAMPLES)
    rejected = errors(differences) > LEVEL
    settled = errors(differences[:, :FIRST]) <= most_lenient(FIRST / EXAMPLES, LEVEL)
    return tuple(float(found.double().mean()) for found in (rejected, rejected & ~settled, settled))


@pytest.mark.parametrize("kind", ["normal", "t5", "t3", "long tail up", "long tail down", "a few get much worse"])
def test_a_worse_cycle_is_found_at_most_two_points_in_a_hundred_less_surely(kind):
    unchanged = draws(kind)
    found = {effect: rates(unchanged, effect) for effect in EFFECTS}
    hidden = {effect: by_all - in_two for effect, (by_all, in_two, _) in found.items()}
    assert max(hidden.values()) <= MISSED + NOISE
    assert max(hidden.values()) > 0.005, "a threshold that settles nothing would pass as well"
    assert all(in_two <= by_all for by_all, in_two, _ in found.values()), "only all examples reject"
    settled = [found[effect][2] for effect in EFFECTS]
    assert settled == sorted(settled, reverse=True)
    assert settled[0] > 0.7  # better by one standard error
    assert settled[1] > 0.5  # no change


def test_the_threshold_is_the_most_lenient_that_keeps_the_promise():
    effects = torch.linspace(-4.0, 12.0, 161, dtype=torch.float64).tolist()
    for share in (1 / 32, 1 / 8, 1 / 4, 3 / 8, 1 / 2):
        assert max(missed(share, margin(share), effects)) <= MISSED
        assert max(missed(share, margin(share) - 0.01, effects)) > MISSED
    assert most_lenient(0.25, 3.0) == pytest.approx(0.249)
    assert most_lenient(0.25, 4.0) == pytest.approx(0.749), "a higher limit leaves more room"


def test_what_is_missed_is_the_probability_of_two_normal_variables():
    """By drawing them: Z₁ of the part and Z₂ of the rest are independent, Z = ρZ₁ + √(1 − ρ²)Z₂."""
    torch.manual_seed(1)
    share, effect, level, below = 0.25, 3.6, 3.0, 1.0
    part, rest = torch.randn(2, 400_000, dtype=torch.float64)
    rho = math.sqrt(share)
    part, rest = part + rho * effect, rest + math.sqrt(1.0 - share) * effect
    whole = rho * part + math.sqrt(1.0 - share) * rest
    drawn = float(((whole > level) & (part <= rho * level - below)).double().mean())
    (expected,) = missed(share, below, [effect - level])
    assert drawn == pytest.approx(expected, abs=4.0 * math.sqrt(expected / 400_000))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan])
def test_a_share_that_is_no_part_is_refused(share):
    with pytest.raises(ValueError, match="a part of the examples"):
        most_lenient(share, 3.0)


losses = st.lists(st.floats(-1e3, 1e3), min_size=8, max_size=40)


@given(old=losses, seed=st.integers(0, 1000), rise=st.floats(-2.0, 2.0), level=st.floats(0.0, 6.0))
def test_what_is_settled_is_not_rejected_and_not_above_the_threshold(old, seed, rise, level):
    before = torch.tensor(old, dtype=torch.float64)
    noise = torch.randn(len(old), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    after, test = before + noise + rise, PairedTest(level)
    settled = test.settles(after, before, share=0.25)
    z = float(errors((after - before).reshape(1, -1)))
    assert not (settled and test(after, before))
    if abs(z - most_lenient(0.25, level)) > 1e-6 and not test(after, before):
        assert settled == (z <= most_lenient(0.25, level))


@pytest.mark.parametrize(
    "new, old",
    [
        (torch.ones(4), torch.ones(4)),  # nothing is seen, so nothing is known of the others
        (torch.tensor(0.5), torch.tensor(1.0)),
        (torch.ones(1), torch.zeros(1)),
        (torch.ones(4), torch.zeros(5)),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.inf])),
    ],
    ids=["equal", "scalars", "one", "lengths", "nan", "inf"],
)
def test_what_settles_nothing(new, old):
    assert not PairedTest().settles(new, old, share=0.25)


def test_one_example_that_blows_up_is_not_settled():
    """D17: whatever the threshold, what is no noise is none."""
    old = torch.linspace(0.5, 1.5, 32)
    new = old.clone()
    new[7] = 1e6
    assert not PairedTest().settles(new, old, share=0.25)
    assert not PairedTest(level=9.0).settles(new, old, share=0.5)


def test_one_cycle_in_twenty_is_judged_by_all():
    assert [cycle for cycle in range(1, 61) if is_by_all(cycle)] == [20, 40, 60]
    assert EVERY == 20
