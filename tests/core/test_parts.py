"""Rings, curvature tests, acceptance and scalings, each by itself."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.core.acceptance import FactorTest, RelativeTest, is_rejected
from adaqn.core.curvature import AccumulatedFisher
from adaqn.core.history import Ring
from adaqn.core.pairs import absolute, scale_free
from adaqn.core.scaling import Adagrad, Adam, BarzilaiBorwein, RMSProp
from adaqn.core.scaling_names import make_scaling
from oracles import empty_pairs


@given(st.integers(1, 6), st.lists(st.one_of(st.integers(0, 99), st.none()), max_size=30))
def test_ring_order_for_every_rotation(capacity, pushes):
    """Oldest first, whatever was pushed and however often it was cleared (None)."""
    ring, expected = Ring(torch.zeros(capacity, 1)), []
    for value in pushes:
        if value is None:
            ring.clear()
            expected = []
        else:
            ring.push(torch.tensor([float(value)]))
            expected = [*expected, value][-capacity:]
        assert [int(ring.data[slot]) for slot in ring.order] == expected
        assert sorted(int(v) for v in ring.rows[:, 0]) == sorted(expected)


@given(st.integers(1, 5), st.integers(0, 12))
def test_gram_matrix_is_the_upper_triangle_of_the_pairs_by_age(capacity, count):
    pairs = empty_pairs(capacity, 6)
    for _ in range(count):
        s = torch.randn(6, dtype=torch.float64)
        pairs.push(s, s * 2.0 + 0.01 * torch.randn(6, dtype=torch.float64))
    stored = list(pairs)
    S, Y = ([p[i] for p in stored] for i in (0, 1))
    for i in range(len(stored)):
        for j in range(i, len(stored)):
            assert float(pairs.R[i, j]) == pytest.approx(float(S[i] @ Y[j]), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(size=st.integers(1, 5), count=st.integers(1, 12), batch_size=st.sampled_from([1, 32]))
def test_fisher_product_is_the_product_with_the_explicit_matrix(dtype, size, count, batch_size):
    n = 9
    fisher = AccumulatedFisher(size, batch_size)
    fisher.build(torch.zeros(size, n, dtype=dtype))
    gradients = torch.randn(count, n, dtype=torch.float64).to(dtype)
    for g in gradients:
        fisher.observe(g.double())
    kept = gradients[-size:].double()
    matrix = kept.T @ kept / (len(kept) * batch_size)
    s = torch.randn(n, dtype=torch.float64)
    torch.testing.assert_close(fisher.product(s, s, out=torch.empty(n, dtype=torch.float64)), matrix @ s)
    fisher.clear()
    assert fisher.ring.size == 0


def test_the_scale_free_test_stores_what_the_absolute_one_skips():
    assert not absolute(ss=1.0, sy=1e-6, yy=1e-10, eps=1e-4)
    assert scale_free(ss=1.0, sy=1e-6, yy=1e-10, eps=1e-4)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(1e-3, 1.0))
def test_the_scale_free_test_does_not_depend_on_the_scale_of_s_or_y(a, b, cosine):
    expected = scale_free(1.0, cosine, 1.0, 0.1)
    assert scale_free(a * a, cosine * a * b, b * b, 0.1) == expected or math.isclose(cosine, 0.1, rel_tol=1e-9)


@pytest.mark.parametrize("test", [absolute, scale_free])
@pytest.mark.parametrize("sy", [0.0, -1.0, math.nan, math.inf, 5e-324])
def test_no_pair_is_stored_without_positive_finite_curvature(test, sy):
    assert not test(0.0, sy, 1.0, 0.0)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(1.0, 2.0))
def test_rejection_is_sign_safe(f_new, f_old, factor):
    assert is_rejected(f_new, f_old, factor) == (f_new > f_old + (factor - 1.0) * abs(f_old))
    assert not is_rejected(f_old, f_old, factor)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.001, 0.5))
def test_the_relative_test_is_the_factor_test(f_new, f_old, tolerance):
    """D12."""
    relative, factor = RelativeTest(tolerance), FactorTest(1.0 + tolerance)
    new, old = torch.tensor(f_new), torch.tensor([f_old, f_old])
    assert relative(new, old) == factor(new, old)
    if abs((f_new - f_old) / f_old - tolerance) > 1e-5:
        assert relative(new, old) == ((f_new - f_old) / f_old > tolerance)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_rejected(value):
    assert is_rejected(value, 1.0, 1e6)
    assert not is_rejected(1.0, math.nan, 1.01)  # a set that cannot judge rejects nothing


@pytest.mark.parametrize(
    "scaling, torch_optimizer",
    [
        (Adagrad(1e-4), lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=1e-4, eps=0)),
        (RMSProp(0.9, 1e-6), lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.9, eps=1e-6)),
        (Adam(0.95, 1e-7), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.95), eps=1e-7)),
    ],
    ids=["adagrad", "rmsprop", "adam"],
)
def test_scalings_are_those_of_torch(scaling, torch_optimizer):
    w = torch.nn.Parameter(torch.randn(7, dtype=torch.float64))
    ours = w.detach().clone()
    opt = torch_optimizer([w])
    scaling.build({name: torch.zeros(7, dtype=torch.float64) for name in scaling.vector_names}, [(3,), (2, 2)])
    for _ in range(50):
        w.grad = torch.randn(7, dtype=torch.float64)
        opt.step()
        scaling.update(w.grad)
        ours -= 0.1 * scaling.apply(w.grad, out=torch.empty_like(ours))
    torch.testing.assert_close(ours, w.detach(), rtol=1e-13, atol=1e-14)


def test_barzilai_borwein_is_the_identity_until_a_pair_is_stored_and_after_a_clear():
    scaling, v = BarzilaiBorwein(), torch.tensor([2.0])
    assert scaling.apply(v, out=torch.empty(1)) == 2.0
    scaling.on_stored(sy=3.0, yy=12.0)
    assert scaling.apply(v, out=torch.empty(1)) == 0.5
    scaling.on_cleared()
    assert scaling.apply(v, out=torch.empty(1)) == 2.0


def test_adam_corrects_the_bias_of_a_late_parameter_by_itself():
    scaling, g = Adam(0.9, 1e-12), torch.tensor([4.0, 4.0])
    scaling.build({"square_avg": torch.zeros(2)}, [(), (1,)])
    for _ in range(3):
        scaling.update(g)
    scaling.load_numbers(1, {"step": 0})
    scaling.vectors["square_avg"][1] = 0.0
    scaling.update(g)
    torch.testing.assert_close(scaling.apply(g, out=torch.empty(2)), torch.ones(2))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: make_scaling("shampoo"), "one of .*'adagrad'.*got 'shampoo'"),
        (lambda: Adam(eps=-1.0), "eps of the scaling must be a positive number, got -1.0"),
        (lambda: Adagrad(math.nan), "eps of the scaling must be a positive number, got nan"),
    ],
)
def test_bad_scalings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
