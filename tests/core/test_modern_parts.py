"""Momentum, the length of cycles and the paired test, each by itself, against what it stands for."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn import Outcome
from adaqn.core.acceptance import NOTICEABLE, FactorTest, PairedTest, halves_step
from adaqn.core.cycle import cosine, next_cycle_length, noise_cosine, signal_share
from adaqn.core.momentum import Momentum
from adaqn.core.scaling import runs
from oracles import empty_pairs


@given(st.lists(st.tuples(st.integers(1, 4), st.one_of(st.none(), st.integers(0, 2))), max_size=8))
def test_runs_cover_every_part_that_has_an_age_and_no_neighbours_could_be_joined(parts):
    sizes, ages = [size for size, _ in parts], [age for _, age in parts]
    found = runs(sizes, ages)
    seen = [None] * sum(sizes)
    for part, age in found:
        seen[part] = [age] * (part.stop - part.start)
    assert seen == [age for size, age in parts for _ in range(size)]
    assert all(a.stop < b.start or i != j for (a, i), (b, j) in itertools.pairwise(found))


def test_momentum_is_the_weighted_sum_of_the_gradients():
    """m̂ = Σ (1−β)βᵗ⁻ⁱ gᵢ / (1 − βᵗ), and a part without gradients neither ages nor changes."""
    momentum, beta = Momentum(), 0.8
    momentum.build(torch.zeros(5, dtype=torch.float64), [2, 3])
    seen = [[], []]
    for k in range(12):
        g = torch.randn(5, dtype=torch.float64)
        present = [0, 1] if k % 3 else [1]
        for i, part in enumerate((slice(0, 2), slice(2, 5))):
            if i in present:
                seen[i].append(g[part].clone())
            else:
                g[part] = 0.0
        momentum.mix(g, present, [beta, beta])
        for i, part in enumerate((slice(0, 2), slice(2, 5))):
            t = len(seen[i])
            weighted = sum((beta ** (t - 1 - j) * v for j, v in enumerate(seen[i])), torch.zeros(1))
            expected = (1 - beta) * weighted / (1 - beta**t) if i in present else torch.zeros(2, dtype=torch.float64)
            torch.testing.assert_close(g[part], expected.double(), rtol=1e-12, atol=1e-14)


def averages_of_walk(length: int, beta: float, drift: float, cycles: int = 400, n: int = 300) -> torch.Tensor:
    """Averages over each ``length`` points of a walk in n dimensions, with steps of unit variance."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(length * cycles, n, dtype=torch.float64, generator=generator)
    for t in range(1, len(steps)):
        steps[t] = beta * steps[t - 1] + math.sqrt(1.0 - beta**2) * steps[t]
    return (steps + drift).cumsum(0).reshape(cycles, length, n).mean(1)


@pytest.mark.parametrize("length, beta, drift", [(5, 0.0, 0.0), (5, 0.0, 0.5), (3, 0.9, 0.0), (8, 0.9, 1.0)])
def test_signal_share_is_the_share_of_drift_in_s(length, beta, drift):
    s = averages_of_walk(length, beta, drift).diff(dim=0)
    cosine = float(torch.cosine_similarity(s[1:], s[:-1]).mean())
    expected = (drift * length) ** 2 * s.shape[1] / float(s.square().sum(1).mean())
    assert signal_share(cosine, length, beta) == pytest.approx(expected, abs=0.03)


@given(st.integers(1, 20), st.floats(0.0, 0.99))
def test_the_cosine_of_noise_leaves_room_for_a_signal(length, momentum):
    assert 0.0 <= noise_cosine(length, momentum) < 1.0


def length_after(averages: torch.Tensor, cycles: int = 40) -> int:
    """Where the rule goes if every cycle looks like these."""
    s = averages.diff(dim=0)
    length, cosines = 5, torch.cosine_similarity(s[1:], s[:-1])
    for k in range(cycles):
        length = next_cycle_length(length, Outcome.STORED, signal_share(float(cosines[k]), 5), 2, 20)
    return length


def test_noise_makes_cycles_long_and_drift_makes_them_short():
    assert length_after(averages_of_walk(5, 0.0, 0.0)) == 20
    assert length_after(averages_of_walk(5, 0.0, 2.0)) == 2
    assert length_after(torch.randn(60, 300, dtype=torch.float64)) == 20  # around a minimum


@given(st.integers(1, 40), st.sampled_from(Outcome), st.one_of(st.none(), st.floats(-2, 1)), st.integers(1, 9))
def test_a_cycle_stays_within_its_bounds_and_changes_slowly(length, outcome, share, shortest):
    longest = shortest + 10
    length = min(max(length, shortest), longest)
    after = next_cycle_length(length, outcome, share, shortest, longest)
    assert shortest <= after <= longest
    assert abs(after - length) <= max(1, length // 4)
    if outcome is Outcome.SKIPPED:
        assert after >= length
    if outcome is Outcome.REJECTED:
        assert after < length or length == shortest


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_two_newest_pairs_are_compared_whatever_the_rotation(dtype):
    pairs, previous = empty_pairs(3, 6, dtype), None
    for _ in range(8):
        s = torch.randn(6, dtype=torch.float64).to(dtype)
        wide = s.to(torch.promote_types(torch.float32, dtype))
        square, across = pairs.beside_newest(wide).tolist()
        found = cosine(square, across, float(wide.dot(wide)))
        if previous is None:
            assert found is None
        elif len(pairs) > 0:
            assert found == pytest.approx(float(torch.cosine_similarity(s.double(), previous.double(), 0)), abs=1e-5)
        pairs.push(s, 2.0 * s)
        previous = s


@given(st.integers(2, 200), st.floats(-0.5, 0.5), st.sampled_from([0.0, 2.0, 3.0]), st.floats(1e-150, 1e150))
def test_the_paired_test_is_the_t_statistic_of_the_differences(count, shift, level, scale):
    generator = torch.Generator().manual_seed(count)
    old = torch.randn(count, dtype=torch.float64, generator=generator)
    d = torch.randn(count, dtype=torch.float64, generator=generator) + shift
    t = float(d.mean() / (d.std() / math.sqrt(count)))
    if abs(t - level) > 1e-6 and abs(t) > 1e-6:
        matters = float(d.mean() / (old.std() / math.sqrt(count))) > NOTICEABLE * level
        assert PairedTest(level)((old + d) * scale, old * scale) == (t > level and t > 0.0 and matters)


def test_what_noise_explains_is_kept_and_what_it_does_not_is_rejected():
    """Nothing changed but the noise of 128 losses: γ = 1.01 rejects almost half of it, the paired test hardly any."""
    generator = torch.Generator().manual_seed(0)
    old = 1.0 + torch.rand(400, 128, dtype=torch.float64, generator=generator)
    new = old + 2.0 * torch.randn(old.shape, dtype=torch.float64, generator=generator)
    paired, factor = PairedTest(3.0), FactorTest(1.01)
    assert sum(factor(a, b) for a, b in zip(new, old, strict=True)) > 150
    assert sum(paired(a, b) for a, b in zip(new, old, strict=True)) < 5
    # Small against the spread of the losses, and large against that of the differences: only pairing sees it.
    slightly_worse = old + 0.009 + 0.001 * torch.randn(old.shape, dtype=torch.float64, generator=generator)
    assert not any(factor(a, b) for a, b in zip(slightly_worse, old, strict=True))
    assert all(paired(a, b) for a, b in zip(slightly_worse, old, strict=True))


def test_without_pairs_the_factor_test_decides():
    test = PairedTest(3.0, FactorTest(1.5))
    one, many = torch.tensor(1.0), torch.ones(4)
    assert not test(one * 1.4, one)
    assert test(one * 1.6, one)
    assert test(torch.tensor([1.6]), torch.tensor([1.0]))
    assert not test(torch.ones(3), many)
    assert not test(many, many)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_are_judged_as_by_the_factor_test(bad):
    """D5, D7."""
    good, broken = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, bad, 3.0])
    assert PairedTest()(broken, good)
    assert not PairedTest()(good, broken)


def test_a_constant_loss_is_judged_by_its_sign():
    losses = torch.tensor([1.0, 2.0])
    assert PairedTest()(losses + 0.5, losses)
    assert not PairedTest()(losses - 0.5, losses)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 20))
def test_a_second_rejection_within_the_window_halves(cycle, last, window):
    assert halves_step(cycle, last, window) == (last >= 1 and cycle <= last + window)
