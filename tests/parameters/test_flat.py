"""Parameters as one vector: any shapes and dtypes, there and back without loss, and few reads from the device."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn import StorageOptions
from adaqn.parameters.flat import FlatParameters
from oracles import NoisyValley, Vector, quiet, run
from reads import reads

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6).map(
    lambda shapes: [*shapes[:5], (2,)]
)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])


def tensors(shapes, dtypes):
    return [torch.randn(shape, dtype=torch.complex64).to(dtype) if dtype.is_complex else torch.randn(shape).to(dtype)
            for shape, dtype in zip(shapes, dtypes, strict=False)]  # fmt: skip


@given(SHAPES, st.lists(DTYPES, min_size=6, max_size=6), st.integers(1, 3))
def test_gather_and_scatter_are_inverse_for_all_shapes_and_dtypes(shapes, dtypes, rows):
    params = [torch.nn.Parameter(t) for t in tensors(shapes, dtypes)]
    flat = FlatParameters(params)
    before = [p.detach().clone() for p in params]
    vector = flat.gather(flat.new())
    with flat.swapped(flat.new(), backup=flat.new()):
        assert all(p.count_nonzero() == 0 for p in params)
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    flat.scatter(vector)
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    stacked = flat.new(rows)
    for view, p in zip(flat.views(stacked), params, strict=True):
        assert view.shape == (rows, *p.shape, *([2] if p.is_complex() else []))
        view.fill_(1.0)
    assert stacked.sum() == stacked.numel()


@given(SHAPES, st.data())
def test_gradients_arrive_where_their_parameters_are_and_missing_ones_are_zero(shapes, data):
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    flat = FlatParameters(params)
    given_ones = [i for i in range(len(params)) if data.draw(st.booleans())]
    for i in given_ones:
        params[i].grad = torch.full_like(params[i], i + 1.0)
    vector = flat.new().fill_(-7.0)
    assert flat.gather_gradients(flat.views(vector)) == given_ones
    for i, view in enumerate(flat.views(vector)):
        assert (view == (i + 1.0 if i in given_ones else 0.0)).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scaling": "adam"},
        {"momentum": 0.9},
        {"storage": StorageOptions(history_dtype=torch.bfloat16)},
        {"maximize": True},
    ],
)
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_no_value_is_read_from_the_device_in_a_step(options, tensor_lr):
    problem = NoisyValley()
    model = Vector(problem.w0)
    lr = torch.tensor(0.01, dtype=torch.float64) if tensor_lr else 0.01
    opt = quiet(model.parameters(), lr=lr, cycle_length=4, **options)
    run(opt, model, problem, range(20))
    assert opt.stats.pairs > 0
    for k in range(20, 23):  # the steps of a cycle but its last
        model.set_gradient(problem.gradient(model.vector(), k))
        with reads() as noted:
            opt.step()
        assert not noted.lines


def test_a_gradient_whose_square_underflows_is_a_gradient():
    w = torch.nn.Parameter(torch.ones(3))
    opt = quiet([w], lr=0.1, scaling="adam")
    w.grad = torch.full((3,), 1e-30)
    opt.step()
    assert (opt.stats.steps, opt.stats.nonfinite) == (1, 0)


@pytest.mark.parametrize("scaling", ["adagrad", "adam", "rmsprop"])
def test_a_gradient_whose_square_overflows_does_not_stop_a_coordinate_for_ever(scaling):
    w = torch.nn.Parameter(torch.ones(3))
    opt = quiet([w], lr=0.1, scaling=scaling)
    for size in (1.0, 1e20, 1.0):
        w.grad = torch.full((3,), size)
        opt.step()
    assert (opt.stats.steps, opt.stats.nonfinite) == (2, 1)
    assert (w.detach() < 0.95).all()


def test_only_empty_parameters_are_nothing_to_train():
    w = torch.nn.Parameter(torch.ones(0))
    opt = quiet([w])
    w.grad = torch.ones(0)
    with pytest.raises(ValueError, match="all parameters are empty"):
        opt.step()
