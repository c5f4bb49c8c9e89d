"""H0⁻¹, pairs damped towards it, and what the paired test never takes for noise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaqn import AdaQN, PairOptions
from adaqn.core.acceptance import PairedTest
from adaqn.core.kronecker import Kronecker
from adaqn.core.pairs import TowardsH0
from adaqn.core.scaling import Adagrad, Adam, BarzilaiBorwein, RMSProp, Scaling
from inside import method
from oracles import NoisyValley, Vector

SHAPES = [(4, 3), (5,), (2, 3, 2)]
SCALINGS = [Scaling(), BarzilaiBorwein(0.3), Adagrad(), RMSProp(), Adam(), Kronecker(refresh=2, block_size=4)]


def learnt(scaling: Scaling) -> tuple[Scaling, int]:
    """That has seen a few gradients, and how long they are."""
    params = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES]
    opt = AdaQN(params, lr=0.0, scaling=scaling, reject="none")
    for _ in range(7):
        for p in params:
            p.grad = torch.randn_like(p)
        opt.step()
    return opt.scaling, sum(p.numel() for p in params)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: type(s).__name__)
def test_the_inverse_undoes_h0(scaling):
    scaling, n = learnt(scaling)
    assert scaling.has_inverse()
    v = torch.randn(n, dtype=torch.float64)
    there = scaling.apply(v, out=torch.empty_like(v))
    torch.testing.assert_close(scaling.apply_inverse(there, out=torch.empty_like(v)), v, rtol=1e-9, atol=1e-12)


@given(st.floats(0.01, 1.0), st.floats(-8.0, 8.0), st.integers(0, 2**31))
def test_along_s_no_pair_has_less_than_its_share_of_h0s_curvature(share, exponent, seed):
    torch.manual_seed(seed)
    scaling, n = learnt(Adam())
    s = torch.randn(n, dtype=torch.float64)
    gradients = torch.randn(5, n, dtype=torch.float64) * 10.0**exponent
    y = gradients.T @ (gradients @ s)
    h0 = float(s @ scaling.apply_inverse(s, out=torch.empty_like(s)))
    before = y.clone()
    TowardsH0(share)(s, y, scaling)
    assert float(s @ y) >= share * h0 * (1.0 - 1e-9)
    if float(s @ before) >= share * h0:
        assert torch.equal(y, before), "a pair that says enough is left alone"
    else:
        assert float(s @ y) == pytest.approx(share * h0, rel=1e-6)


def test_a_whole_share_leaves_h0_as_it_is_along_s():
    scaling, n = learnt(Adam())
    s, y = torch.randn(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    TowardsH0(1.0)(s, y, scaling)
    torch.testing.assert_close(y, scaling.apply_inverse(s, out=torch.empty_like(s)))


def test_y_that_is_not_a_number_stays_so():
    scaling, n = learnt(Adam())
    y = torch.full((n,), math.nan, dtype=torch.float64)
    TowardsH0(0.5)(torch.ones(n, dtype=torch.float64), y, scaling)
    assert y.isnan().all()


class OnlyForwards(Scaling):
    """A user's own H0, without its inverse."""

    def apply(self, v, out):
        return torch.mul(v, 0.1, out=out)


def test_a_scaling_without_inverse_is_not_damped_and_says_so_where_that_was_asked_for():
    w = [nn.Parameter(torch.ones(3))]
    assert not OnlyForwards().has_inverse()
    assert method(AdaQN(w, preset="modern", scaling=OnlyForwards())).repair is None
    assert method(AdaQN(w, preset="modern")).repair is not None
    with pytest.raises(ValueError, match=r"OnlyForwards has an apply\(\) without.*damping=0"):
        AdaQN(w, scaling=OnlyForwards(), pairs=PairOptions(damping=0.5))
    with pytest.raises(ValueError, match=r"damping must lie in \[0, 1\], got 2"):
        AdaQN(w, pairs=PairOptions(damping=2.0))
    with pytest.raises(TypeError, match="damping must be a number"):
        AdaQN(w, pairs=PairOptions(damping="much"))


def test_small_losses_do_not_lengthen_steps_without_bound():
    """The same problem with a loss a million times smaller: H0 undoes that, and damped pairs leave it undone."""
    longest = {}
    for damping in (0.0, 0.5):
        for factor in (1.0, 1e-6):
            problem = NoisyValley()
            model = Vector(problem.w0)
            pairs, scaling = PairOptions(damping=damping), Adam(eps=1e-30)
            opt = AdaQN(model.parameters(), preset="modern", pairs=pairs, reject="none", scaling=scaling, warm_up=0)
            before, steps = model.vector(), []
            for k in range(60):
                model.set_gradient(problem.gradient(model.vector(), k) * factor)
                opt.step()
                steps.append(float((model.vector() - before).norm()))
                before = model.vector()
            longest[damping, factor] = max(steps)
    assert longest[0.5, 1e-6] < 4.0 * longest[0.5, 1.0]
    assert longest[0.0, 1e-6] > 100.0 * longest[0.0, 1.0], "without damping they are: the test can fail"


def test_a_few_examples_that_blow_up_are_no_noise():
    old = torch.full((128,), 0.01)
    new = old.clone()
    new[0] += 0.05
    assert not PairedTest()(new, old), "one example in 128 is"
    new[0] += 1e6
    assert PairedTest()(new, old)
    assert not PairedTest()(old, new), "nor is it rejected on the way back"
