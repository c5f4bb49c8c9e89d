"""What happens at the ends of the range of numbers, and where there is nothing to do."""

import math

import pytest
import torch
from torch import nn

import inside
from adaqn import AdaQN, Kronecker, PairOptions
from adaqn.core.backtracking import lowest_of_values
from adaqn.core.barzilai_borwein import BoundedBarzilaiBorwein
from adaqn.core.blocks import blocks_of
from adaqn.core.checks import not_nan
from adaqn.core.curvature import Curvature
from adaqn.core.full_matrix import bfgs, update_
from adaqn.core.hager_zhang import HagerZhang
from adaqn.core.hessian import hessian_difference
from adaqn.core.jacobian import gradients, with_fallback
from adaqn.core.line_search import Trial
from adaqn.core.pairs import Damping
from adaqn.core.regularised import Regularised
from adaqn.core.scaling import BarzilaiBorwein, Scaling
from adaqn.core.strong_wolfe import lowest_of_cubic
from oracles import dense_kronecker, empty_pairs, quiet


def test_two_trials_at_one_length_say_nothing_about_the_shape():
    start, one = Trial(0.0, 1.0, -1.0), Trial(0.5, 0.8, 0.1)
    assert math.isnan(lowest_of_values(start, one, one))
    assert lowest_of_cubic(one, one, 0.2, 0.6) == pytest.approx(0.4)


def test_a_bracket_between_two_neighbouring_numbers_is_not_cut():
    a, b = Trial(1.0, 0.0, -1.0), Trial(math.nextafter(1.0, 2.0), 5.0, -1.0)
    with pytest.raises(StopIteration) as over:
        next(HagerZhang()._cut(a, b, ceiling=1.0, resolution=0.0))
    assert over.value.value == (a, b)


@pytest.mark.parametrize(
    "rule, s, s_inverse_s",
    [(bfgs, 1e-200, 1e200), (lambda b, h, n, first: (0.0, 1.0), 1.0, 1.0)],
    ids=["a quotient that is infinite", "a rule without a scale"],
)
def test_a_pair_that_no_matrix_can_hold_changes_nothing(rule, s, s_inverse_s):
    H = torch.eye(2, dtype=torch.float64)
    step = torch.tensor([s, 0.0], dtype=torch.float64)
    assert not update_(H, step, torch.tensor([1.0, 0.0]), rule, s_inverse_s=s_inverse_s)
    assert torch.equal(H, torch.eye(2, dtype=torch.float64))


def test_no_step_has_no_change_of_the_gradient():
    w = [torch.ones(3, dtype=torch.float64)]
    (change,) = hessian_difference(lambda leaves: leaves[0].pow(4).sum(), w, [torch.zeros(3)], reach=1e-5)
    assert not change.any()


def test_outputs_without_a_graph_have_no_gradients():
    (found,) = gradients([torch.ones(3)], [torch.ones(2, requires_grad=True)])
    assert torch.equal(found, torch.zeros(2))


def test_the_second_way_is_made_once():
    made = []

    def missing(v):
        raise NotImplementedError

    def second():
        made.append(True)
        return sum

    along = with_fallback(missing, second)
    assert [along([1, 2]), along([3, 4])] == [3, 7]
    assert len(made) == 1


def test_parts_that_need_another_h0_say_so():
    v = torch.ones(2)
    with pytest.raises(TypeError, match="bounded Barzilai-Borwein scaling, got Scaling"):
        Damping()(v, v.clone(), Scaling())
    with pytest.raises(TypeError, match=r"RES needs a scaling that is a number.*got Scaling"):
        Regularised(0.1, 0.0)(v, empty_pairs(2, 2), Scaling(), torch.empty(2))


def test_pairs_that_make_a_singular_system_leave_h0_alone():
    pairs, g = empty_pairs(2, 3), torch.arange(3.0, dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    pairs.push(zero, zero)
    out = Regularised(1.0, 0.5)(g, pairs, BarzilaiBorwein(1.0), torch.empty_like(g))
    torch.testing.assert_close(out, g / 2.0 + 0.5 * g)


def test_h0_as_it_comes_is_the_identity():
    h0, v = Scaling(), torch.tensor([3.0, 4.0])
    assert h0.square(v) == 25.0
    assert (h0.own_moments(0), h0.blocks((2, 3))) == ({}, None)


def test_a_damped_pair_that_is_not_finite_says_nothing_about_h0():
    h0, s = BoundedBarzilaiBorwein(0.1, 1.0), torch.ones(2)
    before = h0.factor
    Damping()(s, torch.tensor([math.inf, 1.0]), h0)
    assert h0.factor == before


def test_an_empty_matrix_has_no_blocks():
    assert blocks_of((0, 5)) == []


def test_what_is_compared_by_must_be_a_number():
    with pytest.raises(ValueError, match="threshold must be a number, got nan"):
        not_nan("threshold", math.nan)


class Seen(Curvature):
    """Of a user: the sum of all gradients that were finite, and twice the identity."""

    def __init__(self):
        self.total = 0.0

    def observe(self, g):
        self.total += float(g.sum())

    def product(self, s, candidate, out):
        return torch.mul(s, 2.0, out=out)


def test_a_curvature_of_a_user_observes_the_finite_gradients():
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w], cycle_length=2, pairs=PairOptions(memory_size=2, curvature=Seen()))
    for k in range(6):
        w.grad = torch.full((2,), math.nan if k == 3 else 1.0)
        opt.step()
    assert inside.state(opt).curvature.total == 10.0
    assert opt.stats.stored > 0


def test_a_curvature_without_a_product_says_what_to_override():
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w], cycle_length=1, pairs=PairOptions(memory_size=2, curvature=Curvature()))
    w.grad = torch.ones(2)
    opt.step()
    with pytest.raises(TypeError, match=r"Curvature has no product with s: override product\(\)"):
        opt.step()


def test_a_long_side_turns_alone():
    """Sides of up to 128 are turned together, longer ones one by one."""
    params = [nn.Parameter(torch.randn(130, 2, dtype=torch.float64)) for _ in range(2)]
    opt = AdaQN(params, lr=0.01, scaling=Kronecker(refresh=2), reject="none", pairs=PairOptions(memory_size=0))
    for _ in range(6):
        for p in params:
            p.grad = torch.randn_like(p)
        opt.step()
    matrix = dense_kronecker(opt.scaling)
    torch.testing.assert_close(matrix, matrix.T)
    assert torch.linalg.eigvalsh(matrix).min() > 0.0
