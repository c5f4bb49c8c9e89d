"""The Kronecker scaling in blocks, in stacks, with bases that come one after the other, and with gradients to skip."""

import math
from collections import Counter
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.core import eigenbasis, turning
from adaqn.core.blocks import blocks_of
from adaqn.core.eigenbasis import matrix_shape
from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Adagrad, Adam, RMSProp, Scaling
from adaqn.core.secant import KroneckerSecant, Secant
from adaqn.core.turning import Place
from adaqn.parameters.buffers import tensor_buffer, tensor_layout, tensors_by_parameter
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.processes import processes_for
from oracles import dense_kronecker, relative_error


def apart(scaling, shapes, dtype=torch.float64, **options):
    """A scaling whose tensors lie apart: every block is a stack of its own."""
    vectors = {name: torch.zeros(sum(map(math.prod, shapes)), dtype=dtype) for name in scaling.vector_names}
    kept = [{k: torch.zeros(s, dtype=dtype) for k, s in scaling.tensor_shapes(shape).items()} for shape in shapes]
    scaling.build(vectors, shapes, kept, **options)
    return scaling


def together(scaling, shapes, dtype=torch.float64):
    """A scaling with the memory that an optimizer gives it: equal shapes lie side by side."""
    flat = FlatParameters(
        [torch.zeros(shape, dtype=dtype) for shape in shapes], processes_for(None, torch.device("cpu"))
    )
    plan = tensor_layout(scaling, flat.shapes)
    buffers = {name: tensor_buffer(of, flat) for name, of in plan.items()}
    entries = tensors_by_parameter(buffers, plan, len(shapes))
    kept = [{name.removeprefix("scaling_"): t for name, t in entry.items()} for entry in entries]
    scaling.build({name: flat.new() for name in scaling.vector_names}, shapes, kept)
    return scaling


def gradients(count, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, dtype=torch.float64, generator=generator) for _ in range(count)]


def as_matrix(scaling):
    n = sum(scaling.sizes)
    return torch.stack([scaling.apply(e, torch.empty_like(e)) for e in torch.eye(n, dtype=torch.float64)], 1)


def known(scaling):
    return [t for kept in (scaling.vectors, *scaling.tensors) for t in kept.values()]


@given(p=st.integers(1, 3000), q=st.integers(1, 3000), size=st.integers(2, 3000))
def test_blocks_cover_a_matrix_once_and_none_is_too_long(p, q, size):
    blocks = blocks_of((p, q), size)
    assert sum(math.prod(block.shape) for block in blocks) == p * q
    assert len({(block.rows, block.columns) for block in blocks}) == len(blocks)
    for side, other in ((0, q), (1, p)):
        lengths, thin = [block.shape[side] for block in blocks], (p, q)[side] > max(128, 2 * other)
        assert all(block.bare[side] == thin for block in blocks)
        assert all(block.sides[side] == (1 if thin else length) for block, length in zip(blocks, lengths, strict=True))
        assert max(lengths) == (p, q)[side] if thin else max(lengths) <= size
        assert min(lengths) > 0
    if max(p, q) <= min(size, 128):
        assert len(blocks) == 1


@pytest.mark.parametrize(
    "shape, size, found",
    [
        ((10_000, 100), 2048, [(10_000, 100)]),
        ((5_000, 3_000), 2048, [(1_667, 1_500), (1_667, 1_500)] * 2 + [(1_666, 1_500)] * 2),
        ((400, 100), 2048, [(400, 100)]),
        ((1, 300), 2048, [(1, 300)]),
        ((5, 3), 2, [(2, 2), (2, 1), (2, 2), (2, 1), (1, 2), (1, 1)]),
    ],
)
def test_blocks_by_example(shape, size, found):
    assert [block.shape for block in blocks_of(shape, size)] == found


SHAPE = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@given(shapes=st.lists(SHAPE, min_size=1, max_size=4), size=st.integers(2, 6), steps=st.integers(0, 14), data=st.data())
def test_h0_is_the_block_diagonal_matrix(shapes, size, steps, data):
    with mock.patch.multiple("adaqn.core.blocks", SMALL=data.draw(st.sampled_from([1, 128])), THIN=2):
        check_block_diagonal(shapes, size, steps, data.draw(st.sampled_from([apart, together])))


def check_block_diagonal(shapes, size, steps, make):
    scaling = make(Kronecker(0.9, 1e-6, refresh=3, block_size=size), shapes)
    for g in gradients(steps, sum(scaling.sizes)):
        scaling.update(g)
    expected, found = dense_kronecker(scaling), as_matrix(scaling)
    assert relative_error(found, expected) < 1e-12
    v = gradients(1, sum(scaling.sizes), seed=9)[0]
    torch.testing.assert_close(scaling.square(v), v @ expected @ v)
    torch.testing.assert_close(scaling.apply_inverse(expected @ v, torch.empty_like(v)), v)


@pytest.mark.parametrize("kind", [Kronecker, KroneckerSecant])
def test_a_block_is_what_it_would_be_as_a_matrix_of_its_own(kind):
    """But for V at the first basis, which blocks of one matrix carry along."""
    cut, whole = apart(kind(refresh=1, block_size=3), [(6, 4)]), apart(kind(refresh=1), [(3, 2)] * 4)
    parts = [(slice(*b.rows), slice(*b.columns)) for b in blocks_of((6, 4), 3)]
    for i in range(4):
        whole.load_numbers(i, {"step": 1, "seen": 0})  # older than L and R: carried as well
    cut.load_numbers(0, {"step": 1, "seen": 0})
    for g in gradients(12, 24):
        cut.update(g)
        whole.update(torch.cat([g.view(6, 4)[part].reshape(-1) for part in parts]))
    v = gradients(1, 24, seed=5)[0]
    expected = whole.apply(torch.cat([v.view(6, 4)[part].reshape(-1) for part in parts]), torch.empty_like(v))
    found = cut.apply(v, torch.empty_like(v)).view(6, 4)
    torch.testing.assert_close(torch.cat([found[part].reshape(-1) for part in parts]), expected)


@pytest.mark.parametrize("kind", [Kronecker, KroneckerSecant])
def test_a_stack_gives_what_single_matrices_give(kind):
    shapes = [(4, 3), (3,), (4, 3), (5, 5), (4, 3), (2, 9), (5, 5), (1, 4), ()]
    stacked, single = together(kind(refresh=2, block_size=4), shapes), apart(kind(refresh=2, block_size=4), shapes)
    everyone = range(len(shapes))
    assert len(stacked._stacks_of(everyone).stacks) < len(single._stacks_of(everyone).stacks)
    n = sum(stacked.sizes)
    for k, g in enumerate(gradients(15, n)):
        for scaling in (stacked, single):
            if k % 4 == 2:
                scaling.see(g, [0, 1, 4, 5, 7])
            else:
                scaling.see(g, list(everyone))
    torch.testing.assert_close(as_matrix(stacked), as_matrix(single), rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(known(stacked), known(single), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_blocks_of_one_shape_are_one_stack_wherever_their_matrices_are_cut():
    """In rows and columns, of several matrices and widths, with others between them: one product for all."""
    shapes = [(16, 16), (5,), (16, 16), (8, 24), (3, 2), (16, 16), (8, 24), (16, 8)]
    scaling, single = (make(Kronecker(refresh=2, block_size=8), shapes) for make in (together, apart))
    cut = [stack for stack in scaling._stacks_of(range(len(shapes))).stacks if stack.shape[1:] == (8, 8)]
    assert [len(stack.members) for stack in cut if not stack.members[0].is_contiguous] == [3 * 4 + 2 * 3]
    assert len(cut) == 2, "those whose columns are not cut lie otherwise"
    assert len(together(Kronecker(block_size=8), [(16, 16)] * 20)._stacks_of(range(20)).stacks) == 1
    for g in gradients(7, sum(scaling.sizes)):
        scaling.update(g)
        single.update(g)
    assert relative_error(as_matrix(scaling), dense_kronecker(scaling)) < 1e-12
    for ours, theirs in zip(known(scaling), known(single), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_matrices_at_equal_distances_are_one_stack():
    """As where every second parameter has a gradient: nothing is copied."""
    shapes = [shape for _ in range(6) for shape in ((4, 3), (4,))]
    scaling = together(Kronecker(), shapes)
    (stack,) = scaling._stacks_of([0, 4, 8]).stacks
    assert len(stack.members) == 3
    assert stack.is_view


def test_the_rows_of_a_tensor_are_where_it_is_cut():
    ours, matrix = (apart(Kronecker(refresh=2), shape) for shape in ([(4, 6)], [(4, 6)]))
    cut = Kronecker(refresh=2)
    kept = [{k: torch.zeros(s, dtype=torch.float64) for k, s in cut.tensor_shapes((4, 6)).items()}]
    cut.build({"square_avg": torch.zeros(24, dtype=torch.float64)}, [(2, 2, 6)], kept, cuts=[2])
    assert matrix_shape((2, 2, 6)) == (4, 6) == matrix_shape((2, 2, 6), 2) != matrix_shape((2, 2, 6), 1)
    for g in gradients(9, 24):
        for scaling in (ours, matrix, cut):
            scaling.update(g)
    assert torch.equal(as_matrix(cut), as_matrix(ours))


# ---------------------------------------------------------------------- refreshments


def test_each_basis_is_refreshed_once_in_so_many_steps_and_some_in_each(monkeypatch):
    refreshed, steps = Counter(), []
    original = turning.next_basis

    def counted(average, basis):
        refreshed[len(steps)] += len(average)
        return original(average, basis)

    monkeypatch.setattr(turning, "next_basis", counted)
    scaling = together(Kronecker(refresh=5), [(8, 8)] * 6 + [(30, 8)] * 2)
    before = [t.clone() for t in known(scaling)]
    for g in gradients(40, sum(scaling.sizes)):
        scaling.update(g)
        steps.append(g)
    assert not all(map(torch.equal, known(scaling), before))
    late = [refreshed[s] for s in range(20, 40)]
    assert late[:5] * 4 == late, "the same in each round"
    assert sum(late[:5]) == 16, "each of 8 matrices has two sides"
    work = Counter()
    for ((parameter, _, _), side), slot in scaling._turning.schedule.slots.items():
        work[slot] += scaling.matrices[parameter][side] ** 3
    assert max(work.values()) <= sum(work.values()) / 5 + 30**3, "one above its share at most"


def test_parts_of_a_matrix_are_refreshed_when_the_whole_one_is():
    whole = together(Kronecker(refresh=3, block_size=4), [(8, 4), (4, 4)])
    lower = Kronecker(refresh=3, block_size=4)
    kept = [{k: torch.zeros(s, dtype=torch.float64) for k, s in lower.tensor_shapes((4, 4)).items()}]
    vectors = {"square_avg": torch.zeros(16, dtype=torch.float64)}
    of_whole = [lower.blocks(shape) for shape in ((8, 4), (4, 4))]
    lower.build(vectors, [(4, 4)], kept, places=[Place(0, row=4)], blocks=of_whole)
    for g in gradients(14, 48):
        whole.update(g)
        lower.update(g[16:32].clone())
    torch.testing.assert_close(as_matrix(lower), as_matrix(whole)[16:32, 16:32], rtol=1e-9, atol=1e-12)


def test_mean_squares_are_carried_into_a_basis():
    Q, P = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q for n in (4, 3))
    V = torch.rand(4, 3, dtype=torch.float64)
    K = torch.kron(Q, P)
    expected = (K.T @ torch.diag(V.flatten()) @ K).diagonal().view(4, 3)
    torch.testing.assert_close(eigenbasis.carried(V, Q, P), expected)


# ---------------------------------------------------------------------- gradients that are not finite


class OfAUser(Scaling):
    """Knows nothing of gradients that are not finite."""

    vector_names = ("last",)

    def update(self, g):
        self.vectors["last"].copy_(g + 1.0)


SCALINGS = [
    Adagrad, RMSProp, Adam, Secant, OfAUser, lambda: Kronecker(refresh=2, block_size=3), KroneckerSecant,
]  # fmt: skip


@pytest.mark.parametrize("make", SCALINGS)
@pytest.mark.parametrize("present", [[0, 1, 2, 3], [0, 2]], ids=["all", "some"])
def test_a_gradient_that_is_not_finite_changes_no_tensor(make, present):
    shapes = [(4, 3), (3,), (5, 2), ()]
    plain, skipping = together(make(), shapes), together(make(), shapes)
    yes, no = torch.tensor(1.0), torch.tensor(0.0)
    for k, g in enumerate(gradients(9, 26)):
        plain.see(g, present)
        skipping.see(g, present, yes)
        if k == 7:
            break
    for ours, theirs in zip(known(skipping), known(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    if "seen" in skipping.number_names:  # no basis is due then
        skipping.seen = [2 * (s // 2) for s in skipping.seen]
        skipping._turning.schedule.slots.clear()
    before, steps = [t.clone() for t in known(skipping)], getattr(skipping, "steps", None)
    skipping.see(torch.zeros(26, dtype=torch.float64), present, no)
    assert all(map(torch.equal, known(skipping), before))
    assert getattr(skipping, "steps", None) == steps


def test_first_gradients_that_are_not_finite_do_no_harm():
    scaling = together(Kronecker(refresh=2), [(4, 3)])
    for k, g in enumerate(gradients(12, 12)):
        ok = torch.tensor(float(k > 2))
        scaling.see(g * ok, [0], ok)
        H0 = as_matrix(scaling)
        assert H0.isfinite().all()
    assert relative_error(H0, dense_kronecker(scaling)) < 1e-12
    assert scaling.steps[0] <= 9


def test_nothing_is_read_from_the_device(monkeypatch):
    scaling = together(Kronecker(refresh=2, block_size=3), [(4, 3), (3,), (7, 2)])
    everyone, ok = [0, 1, 2], torch.tensor(1.0)

    def read(*_):
        raise AssertionError("a read")

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, read)
    for g in gradients(9, 29):
        scaling.see(g, everyone, ok)
        scaling.see(g, [0, 1], ok)
        scaling.apply(g, torch.empty_like(g))
