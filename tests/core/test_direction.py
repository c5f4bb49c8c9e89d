"""Both directions equal the dense BFGS matrix, for any H0, for every rotation of the ring."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.core.direction import gram, two_loop
from adaqn.core.scaling import Adagrad, Scaling
from oracles import DenseScaling, dense_bfgs, empty_pairs, random_spd, relative_error

BOTH = pytest.mark.parametrize("direction", [gram, two_loop])


def curved_pairs(count, n, generator, *, spread=1.0):
    """(s, As + small) with s·y > 0; ``spread`` near 0 makes the s nearly parallel."""
    A, base = random_spd(n, generator), torch.randn(n, dtype=torch.float64, generator=generator)
    for _ in range(count):
        s = base + spread * torch.randn(n, dtype=torch.float64, generator=generator)
        yield s, A @ s


def filled(capacity, n, count, generator, dtype=torch.float64, spread=1.0):
    pairs, kept = empty_pairs(capacity, n, dtype), []
    for s, y in curved_pairs(count, n, generator, spread=spread):
        pairs.push(s.to(dtype), y.to(dtype))
        kept.append((s.to(dtype).double(), y.to(dtype).double()))
    return pairs, kept[-capacity:]


def scaling_and_matrix(kind, n, generator):
    if kind == "dense":
        matrix = random_spd(n, generator)
        return DenseScaling(matrix), matrix
    scaling = Adagrad()
    scaling.build({"sum": torch.zeros(n, dtype=torch.float64)}, [(n,)])
    scaling.update(torch.randn(n, dtype=torch.float64, generator=generator))
    return scaling, torch.diag(scaling.vectors["sum"].rsqrt())


@BOTH
@given(
    n=st.integers(2, 30),
    capacity=st.integers(1, 7),
    count=st.integers(0, 20),
    kind=st.sampled_from(["diagonal", "dense"]),
    seed=st.integers(0, 10_000),
)
def test_equals_dense_bfgs_for_every_rotation(direction, n, capacity, count, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    pairs, kept = filled(capacity, n, count, generator)
    scaling, H0 = scaling_and_matrix(kind, n, generator)
    g = torch.randn(n, dtype=torch.float64, generator=generator)
    H = dense_bfgs([s for s, _ in kept], [y for _, y in kept], H0)
    d = direction(g.clone(), pairs, scaling, out=torch.empty_like(g))
    assert relative_error(d, H @ g) < 1e-9


@BOTH
@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_stays_accurate_when_pairs_are_nearly_parallel(direction, spread, kind):
    generator = torch.Generator().manual_seed(1)
    pairs, kept = filled(10, 40, 13, generator, spread=spread)
    scaling, H0 = scaling_and_matrix(kind, 40, generator)
    H = dense_bfgs([s for s, _ in kept], [y for _, y in kept], H0)
    g = torch.randn(40, dtype=torch.float64, generator=generator)
    d = direction(g.clone(), pairs, scaling, out=torch.empty_like(g))
    assert relative_error(d, H @ g) < 1e-9


def test_gram_is_as_accurate_as_two_loop_in_float32_when_pairs_are_nearly_parallel():
    errors = {}
    for direction in (gram, two_loop):
        generator = torch.Generator().manual_seed(2)
        pairs, kept = filled(10, 200, 12, generator, torch.float32, spread=1e-3)
        H = dense_bfgs([s for s, _ in kept], [y for _, y in kept], torch.eye(200, dtype=torch.float64))
        g = torch.randn(200, dtype=torch.float64, generator=generator)
        d = direction(g.float(), pairs, Scaling(), out=torch.empty(200))
        errors[direction] = relative_error(d, H @ g.float().double())
    assert errors[gram] < 1e-4
    assert errors[gram] < 10 * errors[two_loop] + 1e-6


@pytest.mark.parametrize("spread", [1e3, 1e6])
def test_gram_is_as_accurate_as_two_loop_when_pairs_differ_by_orders_of_magnitude(spread):
    """Entries beside the diagonal of R far above it: both lose digits, and gram no more than the recursion."""
    errors = {}
    for direction in (gram, two_loop):
        generator = torch.Generator().manual_seed(4)
        n, pairs, kept = 30, empty_pairs(6, 30), []
        A = torch.diag(torch.logspace(0, torch.tensor(spread).log10(), n, dtype=torch.float64))
        for _ in range(6):
            s = torch.randn(n, dtype=torch.float64, generator=generator)
            pairs.push(s, A @ s)
            kept.append((s, A @ s))
        H = dense_bfgs([s for s, _ in kept], [y for _, y in kept], torch.eye(n, dtype=torch.float64))
        g = torch.randn(n, dtype=torch.float64, generator=generator)
        errors[direction] = relative_error(direction(g.clone(), pairs, Scaling(), out=torch.empty_like(g)), H @ g)
    assert errors[gram] < 10 * errors[two_loop] + 1e-9


def test_history_in_bfloat16_is_the_direction_of_the_rounded_pairs():
    generator = torch.Generator().manual_seed(3)
    n = 70_000  # more than one block of columns
    exact = [(s, s * torch.linspace(0.5, 2.0, n, dtype=torch.float64)) for s in torch.randn(3, n, dtype=torch.float64)]
    pairs, wide = empty_pairs(3, n, torch.bfloat16), empty_pairs(3, n)
    for s, y in exact:
        pairs.push(s.float(), y.float())
        wide.push(s.bfloat16().double(), y.bfloat16().double())
    g = torch.randn(n, generator=generator)
    d = gram(g.clone(), pairs, Scaling(), out=torch.empty(n))
    expected = gram(g.double(), wide, Scaling(), out=torch.empty(n, dtype=torch.float64))
    assert relative_error(d, expected) < 1e-5


def test_gram_reads_nothing_back_from_the_device():
    """On the meta device any read of a value raises."""
    pairs, _ = filled(4, 10, 6, torch.Generator().manual_seed(0))
    for name in ("_s", "_y"):
        ring = getattr(pairs, name)
        ring.data = ring.data.to("meta")
    pairs._solved = type(pairs._solved)(*(tensor.to("meta") for tensor in pairs._solved))
    g = torch.empty(10, dtype=torch.float64, device="meta")
    assert gram(g, pairs, Scaling(), out=torch.empty_like(g)).shape == (10,)


def test_pairs_that_cannot_be_solved_together_are_not_kept_together():
    pairs = empty_pairs(2, 2)
    pairs.push(torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([1e-300, 0.0], dtype=torch.float64))
    pairs.push(torch.tensor([1e200, 1.0], dtype=torch.float64), torch.tensor([1e100, 1e-300], dtype=torch.float64))
    assert len(pairs) == 1
    g = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert gram(g, pairs, Scaling(), out=torch.empty_like(g)).isfinite().all()


def test_the_reduction_sees_two_small_sums_per_step():
    """What several processes exchange: two vectors of one number per pair."""
    pairs, _ = filled(4, 10, 4, torch.Generator().manual_seed(0))
    shapes = []

    def reduce(partial):
        shapes.append(tuple(partial.shape))
        return partial

    g = torch.ones(10, dtype=torch.float64)
    gram(g, pairs, Scaling(), out=torch.empty_like(g), reduce=reduce)
    assert shapes == [(4,), (4,)]
