"""Products with s are those of the matrix, on drawn parameters: complex ones behind an odd number of reals too."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaqn import AccumulatedFisher, EmpiricalFisher, HessianProduct
from adaqn.optim.curvatures import GradientDifference, Rerun
from adaqn.parameters.flat import FlatParameters, as_real

SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 2), (0,)])
KINDS = st.sampled_from([torch.float64, torch.complex128])
DRAWN = st.lists(st.tuples(SHAPES, KINDS), min_size=1, max_size=4)


class Quartic(nn.Module):
    """Per example Σ (a·w)⁴/12 over real and imaginary parts of drawn parameters."""

    def __init__(self, drawn):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        # An odd number of reals before everything else.
        drawn = [((3,), torch.float64), *drawn]
        self.held = nn.ParameterList(
            nn.Parameter(torch.randn(shape, dtype=kind, generator=generator)) for shape, kind in drawn
        )

    def forward(self, x):
        vectors = [as_real(p).reshape(-1) for p in self.held]  # torch itself cannot differentiate a cat of them
        columns = x.split([len(v) for v in vectors], dim=1)
        return sum(a @ v for a, v in zip(columns, vectors, strict=True)).pow(4) / 12.0


def output_alone(output, target):
    return output


def parts(drawn, examples=5):
    model = Quartic(drawn)
    flat = FlatParameters(list(model.parameters()))
    x = torch.randn(examples, flat.n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w, s = flat.gather(flat.new()), torch.randn(flat.n, dtype=torch.float64)
    return model, flat, (x, torch.zeros(examples)), w, s


@given(DRAWN)
def test_the_empirical_fisher_of_any_parameters_is_the_explicit_one(drawn):
    model, flat, (x, target), w, s = parts(drawn)
    curvature = EmpiricalFisher(model, output_alone, [(x, target)])
    curvature.attach(flat)
    J = x * ((x @ w).pow(3) / 3.0)[:, None]
    torch.testing.assert_close(curvature.product(s, w, out=flat.new()), J.T @ (J @ s) / len(x))


@given(DRAWN, st.sampled_from([None, 1e-5]))
def test_the_hessian_product_of_any_parameters_is_the_explicit_one(drawn, difference):
    model, flat, (x, target), w, s = parts(drawn)
    curvature = HessianProduct(model, output_alone, [(x, target)], finite_difference=difference)
    curvature.attach(flat)
    H = x.T @ (x * (x @ w).square()[:, None]) / len(x)
    tolerance = {} if difference is None else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(curvature.product(s, w, out=flat.new()), H @ s, **tolerance)


@given(DRAWN)
def test_the_gradient_difference_of_any_parameters_is_one_of_vectors(drawn):
    model, flat, (x, _), w, s = parts(drawn)
    curvature = GradientDifference()
    curvature.attach(flat)
    curvature.build(flat.new(1))

    def closure():
        model.zero_grad()
        model(x).mean().backward()

    def gradient(at):
        return x.T @ ((x @ at).pow(3) / 3.0) / len(x)

    curvature.observe(gradient(w))
    flat.scatter(w + s)
    curvature.rerun = Rerun(closure, {flat.device})
    torch.testing.assert_close(curvature.product(s, w, out=flat.new()), gradient(w + s) - gradient(w))


@given(DRAWN, st.integers(1, 6))
def test_the_accumulated_fisher_of_any_parameters_is_the_explicit_one(drawn, count):
    _, flat, _, w, s = parts(drawn)
    curvature = AccumulatedFisher(4)
    curvature.build(flat.new(4))
    rows = torch.randn(count, flat.n, dtype=torch.float64)
    for row in rows:
        curvature.observe(row)
    kept = rows[-4:]
    torch.testing.assert_close(curvature.product(s, w, out=flat.new()), kept.T @ (kept @ s) / len(kept))


def test_a_batch_far_behind_the_last_one_is_found_at_once():
    """A saved position of any size: the batches are counted once, not for ever."""
    model, flat, batch, w, s = parts([((2,), torch.complex128)])
    curvature = HessianProduct(model, output_alone, [batch])
    curvature.attach(flat)
    curvature.load_numbers({"batch": 10**15})
    assert curvature.product(s, w, out=flat.new()).isfinite().all()
    assert curvature.position == 1
