"""The Kronecker scaling against explicit matrices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.core.eigenbasis import first_basis, into_basis, matrix_shape, next_basis, out_of_basis
from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adam, Scaling
from oracles import dense_kronecker, random_spd, relative_error

SHAPES = [(4, 3), (5,), (), (2, 3, 2), (1, 4)]


def built(scaling, shapes=SHAPES, dtype=torch.float64):
    """A scaling with memory of its own."""
    n = sum(map(math.prod, shapes))
    vectors = {name: torch.zeros(n, dtype=dtype) for name in scaling.vector_names}
    kept = [{k: torch.zeros(s, dtype=dtype) for k, s in scaling.tensor_shapes(shape).items()} for shape in shapes]
    scaling.build(vectors, shapes, kept)
    return scaling


def learn(scaling, steps, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        scaling.update(torch.randn(sum(scaling.sizes), dtype=torch.float64, generator=generator).to(dtype))
    return scaling


def as_matrix(scaling, dtype=torch.float64):
    n = sum(scaling.sizes)
    return torch.stack([scaling.apply(e, torch.empty(n, dtype=dtype)) for e in torch.eye(n, dtype=dtype)], 1)


def bases(scaling):
    return [t for entry in scaling.tensors for name, t in entry.items() if name.endswith("_basis")]


@pytest.mark.parametrize("block_size", [100, 3, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 9, 10, 30])
def test_h0_is_its_dense_matrix(steps, block_size):
    scaling = learn(built(Kronecker(0.9, 1e-6, refresh=4, block_size=block_size)), steps)
    H0 = as_matrix(scaling)
    assert relative_error(H0, dense_kronecker(scaling)) < 1e-13
    torch.testing.assert_close(H0, H0.T, rtol=1e-10, atol=1e-10 * float(H0.abs().max()))
    assert torch.linalg.eigvalsh((H0 + H0.T) / 2).min() > 0
    if steps > 3:
        off_diagonal = H0[:12, :12] - torch.diag(H0[:12, :12].diagonal())
        assert off_diagonal.norm() > 0.02 * H0[:12, :12].norm(), "this H0 is no diagonal in disguise"


@given(
    p=st.integers(1, 6),
    q=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-30, 1e-12, 1e-3, 1.0, 1e6, 1e15]),
    zeros=st.sets(st.integers(0, 11)),
    rank_one=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    refresh=st.integers(1, 4),
)
def test_symmetric_positive_definite_for_every_history(p, q, seed, scale, zeros, rank_one, dtype, refresh):
    generator = torch.Generator().manual_seed(seed)
    scaling = built(Kronecker(refresh=refresh), [(p, q)], dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for k in range(12):
        a, b, G = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in ((p, 1), (1, q), (p, q)))
        G = scale * (a @ b if rank_one else G) * (k not in zeros)
        scaling.update(G.to(dtype).reshape(-1))
        for Q in bases(scaling):
            assert (Q.T @ Q - torch.eye(len(Q), dtype=dtype)).abs().max() < tolerance
        roots = scaling.roots(torch.empty(p * q, dtype=dtype))
        assert roots.isfinite().all()
        assert (roots > 0).all()
        x = torch.randn(p * q, dtype=torch.float64, generator=generator).to(dtype)
        assert x @ scaling.apply(x, torch.empty_like(x)) > 0
    assert all(t.isfinite().all() for t in (scaling.vectors["square_avg"], *scaling.tensors[0].values()))
    H0 = as_matrix(scaling, dtype)
    assert (H0 - H0.T).abs().max() <= 10 * tolerance * H0.abs().max()
    assert relative_error(H0, dense_kronecker(scaling)) < 10 * tolerance


def test_the_basis_follows_the_eigenvectors():
    L = random_spd(6) + torch.diag(torch.arange(6.0, dtype=torch.float64))
    Q = first_basis(L)
    torch.testing.assert_close(Q.T @ L @ Q, torch.diag(torch.linalg.eigvalsh(L).flip(0)))
    Q = torch.eye(6, dtype=torch.float64)
    for _ in range(300):
        Q, _ = next_basis(L, Q)
    torch.testing.assert_close(Q.T @ L @ Q, torch.diag(torch.linalg.eigvalsh(L).flip(0)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_an_average_without_meaning_leaves_the_basis_as_it_is(value):
    Q = torch.linalg.qr(torch.randn(4, 4)).Q
    now, order = next_basis(torch.full((4, 4), value), Q)
    assert torch.equal(now, Q)
    assert order.tolist() == [0, 1, 2, 3]
    assert torch.equal(first_basis(torch.full((4, 4), value)).abs().sum(0), torch.ones(4))


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_rounding_does_not_choose_the_basis(rank):
    """D22: gradients of low rank leave directions open, and their last digits must not decide what is taken there."""
    generator = torch.Generator().manual_seed(rank)
    plain, rounded = (built(Kronecker(refresh=2), [(6, 9)]) for _ in range(2))
    for _ in range(12):
        G = torch.randn(6, rank, dtype=torch.float64, generator=generator)
        G = (G @ torch.randn(rank, 9, dtype=torch.float64, generator=generator)).reshape(-1)
        plain.update(G)
        rounded.update(G * (1.0 + 1e-15 * torch.randn(54, dtype=torch.float64, generator=generator)))
        v = torch.randn(54, dtype=torch.float64, generator=generator)
        expected, found = (scaling.apply(v, torch.empty_like(v)) for scaling in (plain, rounded))
        assert relative_error(found, expected) < 1e-6
    for ours, theirs in zip(bases(plain), bases(rounded), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-6)


def test_a_basis_that_is_missing_is_the_identity():
    v, Q = torch.randn(3, 4, dtype=torch.float64), torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(into_basis(v, None, Q), into_basis(v, eye, Q))
    torch.testing.assert_close(into_basis(v.T, Q, None), into_basis(v.T, Q, eye))
    for left, right, x in ((None, Q, v), (Q, None, v.T), (None, None, v)):
        turned = into_basis(x, left, right)
        assert turned.data_ptr() != x.data_ptr()
        torch.testing.assert_close(out_of_basis(turned, left, right, torch.empty_like(turned)), x)


def test_vectors_and_matrices_without_sides_have_adams_diagonal():
    shapes = [(), (7,), (1, 1), (0, 2)]
    ours, adam = built(Kronecker(0.9, 1e-7), shapes), built(Adam(0.9, 1e-7), shapes)
    assert not any(ours.tensors)
    g = torch.randn(9, dtype=torch.float64)
    for scaling in (ours, adam):
        learn(scaling, 15)
    torch.testing.assert_close(ours.apply(g, torch.empty_like(g)), adam.apply(g, torch.empty_like(g)))
    assert set(Kronecker().tensor_shapes((1, 3))) == {"right_average", "right_basis"}


def test_h0_does_not_care_how_a_tensor_is_cut_into_dimensions():
    a, b = built(Kronecker(refresh=3), [(4, 2, 3)]), built(Kronecker(refresh=3), [(4, 6)])
    assert matrix_shape((4, 2, 3)) == (4, 6)
    assert torch.equal(as_matrix(learn(a, 8)), as_matrix(learn(b, 8)))


def test_h0_turns_with_the_coordinates():
    """What a diagonal cannot do: rotated gradients give the rotated operator."""
    U, W = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q for n in (3, 4))
    plain, turned = built(Kronecker(refresh=2), [(3, 4)]), built(Kronecker(refresh=2), [(3, 4)])
    plain.update(G := torch.randn(12, dtype=torch.float64))
    turned.update((U @ G.view(3, 4) @ W.T).reshape(-1))
    # One gradient leaves a null space whose basis is arbitrary: start from bases that correspond.
    for k in range(60):
        G = torch.randn(3, 4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 4.0, 8.0])
        G = torch.tensor([[1.0], [3.0], [9.0]]) * G
        plain.update(G.reshape(-1))
        turned.update((U @ G @ W.T).reshape(-1))
        if k == 0:
            for side, turn in (("left", U), ("right", W)):
                turned.tensors[0][f"{side}_basis"].copy_(turn @ plain.tensors[0][f"{side}_basis"])
            turned.vectors["square_avg"].copy_(plain.vectors["square_avg"])
    K = torch.kron(U, W)
    torch.testing.assert_close(as_matrix(turned), K @ as_matrix(plain) @ K.T, rtol=1e-6, atol=1e-8)


def test_parameters_without_a_gradient_do_not_age():
    shapes = [(4, 3), (3,), (2, 2)]
    ours, twin = built(Kronecker(refresh=2), shapes), built(Kronecker(refresh=2), shapes)
    generator = torch.Generator().manual_seed(0)
    for k in range(12):
        g = torch.randn(19, dtype=torch.float64, generator=generator)
        if k % 3 == 1:
            g[:12] = 0.0
            ours.update_some(g, [1, 2])
            Scaling.update_some(twin, g, [1, 2])  # what a scaling that knows nothing of this inherits
        else:
            ours.update(g)
            twin.update(g)
    assert ours.seen == [8, 12, 12]
    assert torch.equal(as_matrix(ours), as_matrix(twin))
    for a, b in zip(ours.tensors, twin.tensors, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_reset_forgets_everything():
    again, fresh = learn(built(Kronecker(refresh=3)), 11, seed=1), built(Kronecker(refresh=3))
    again.reset()
    assert torch.equal(as_matrix(learn(again, 7)), as_matrix(learn(fresh, 7)))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"refresh": 0}, ValueError, "refresh must be at least 1, got 0"),
        ({"refresh": 2.5}, TypeError, r"refresh must be a whole number, got 2\.5"),
        ({"block_size": True}, TypeError, "block_size must be a whole number"),
        (
            {"block_size": torch.tensor(4)},
            TypeError,
            r"block_size must be a whole number, not a tensor, got tensor\(4\)",
        ),
        ({"block_size": 1}, ValueError, "block_size must be at least 2, got 1"),
        ({"max_dimension": 512}, TypeError, r"no argument 'max_dimension'.*cut into blocks.*write block_size=512"),
        ({"blocksize": 512}, TypeError, "Kronecker has no argument 'blocksize'"),
        ({"basis_decay": 1.0}, ValueError, r"basis_decay of the scaling must lie in \[0, 1\), got 1\.0"),
        ({"decay": -0.1}, ValueError, r"decay of the scaling must lie in \[0, 1\)"),
        ({"eps": 0.0}, ValueError, "eps of the scaling must be a positive number"),
    ],
    ids=str,
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        Kronecker(**options)
