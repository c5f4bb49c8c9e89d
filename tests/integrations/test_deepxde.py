"""DeepXDE takes our optimizers as it takes any of PyTorch's, and its own loop for L-BFGS takes them too."""

import random
import runpy
from functools import partial

import numpy as np
import pytest
import torch
from killing import EXAMPLES, assert_goes_on_with_the_same_numbers

from adaqn import BFGS, LBFGS
from oracles import assert_same


@pytest.fixture
def dde(monkeypatch):
    """The package; its seeds are those of the whole program, and are put back."""
    monkeypatch.setenv("DDE_BACKEND", "pytorch")
    numpy_state, python_state = np.random.get_state(), random.getstate()
    import deepxde

    deepxde.config.set_random_seed(0)
    yield deepxde
    np.random.set_state(numpy_state)
    random.setstate(python_state)


def burgers(points=400):
    """The model and the network of the example."""
    return runpy.run_path(str(EXAMPLES / "deepxde_burgers.py"))["burgers"](points)


def error_of(model):
    (error,) = model.train_state.metrics_test
    return error


def trained(make, dde, iterations=12):
    dde.config.set_random_seed(0)
    model, net = burgers()
    opt = make(net.parameters(), max_iter=25)
    model.compile(opt, metrics=["l2 relative error"], verbose=0)
    model.train(iterations=iterations, verbose=0)
    return model, opt


def test_burgers_to_a_small_error(dde):
    model, opt = trained(LBFGS, dde)
    assert error_of(model) < 0.04  # 0.002 to 0.009 with seeds 0 to 4
    assert model.train_state.step == 12  # an iteration of DeepXDE is a step of ours, with up to max_iter iterations
    assert 200 < opt.stats.iterations <= 300
    assert opt.stats.evaluations <= 12 * opt.param_groups[0]["max_eval"]
    assert opt.explain().is_well
    # torch's was behind by a factor of 7 or more with those seeds
    theirs, _ = trained(partial(torch.optim.LBFGS, line_search_fn="strong_wolfe"), dde)
    assert error_of(model) < 0.6 * error_of(theirs)


def test_full_matrices(dde):
    model, net = burgers(200)
    before = [p.detach().clone() for p in net.parameters()]
    opt = BFGS(net.parameters(), max_iter=10)
    model.compile(opt, verbose=0)
    model.train(iterations=2, verbose=0)
    losses = [row.sum() for row in model.losshistory.loss_train]
    assert losses[-1] < 0.7 * losses[0]
    assert not any(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_points_that_are_resampled_between_iterations(dde):
    model, net = burgers(200)
    opt = LBFGS(net.parameters(), max_iter=20)
    model.compile(opt, metrics=["l2 relative error"], verbose=0)
    model.train(iterations=1, verbose=0)
    first = error_of(model)
    model.train(iterations=7, callbacks=[dde.callbacks.PDEPointResampler(period=1)], verbose=0)
    assert error_of(model) < 0.6 * first
    assert opt.stats.noise > 0.0  # two losses of the same weights, on other points
    assert opt.stats.skipped <= 0.1 * opt.stats.iterations


def test_an_unknown_number_of_the_equation_is_found(dde):
    """-u″ = c·π² sin(πx) with u measured: c is 1."""
    c = dde.Variable(0.3)

    def equation(x, u):
        return dde.grad.hessian(u, x) + c * np.pi**2 * torch.sin(np.pi * x)

    line = dde.geometry.Interval(-1, 1)
    x = np.linspace(-1, 1, 15)[:, None]
    measured = dde.icbc.PointSetBC(x, np.sin(np.pi * x))
    net = dde.nn.FNN([1, 16, 16, 1], "tanh", "Glorot normal")
    model = dde.Model(dde.data.PDE(line, equation, [measured], num_domain=40), net)
    opt = LBFGS([*net.parameters(), c], max_iter=50)
    model.compile(opt, external_trainable_variables=c, verbose=0)
    model.train(iterations=5, verbose=0)
    assert float(c.detach()) == pytest.approx(1.0, abs=0.02)


def test_its_own_loop_for_lbfgs_reads_our_counters(dde):
    """What ``compile("L-BFGS")`` makes is replaced; the loop ends by ``n_iter`` in the state."""
    options = dde.optimizers.config.LBFGS_options
    before = dict(options)
    model, net = burgers(200)
    model.compile("L-BFGS", verbose=0)
    model.opt = LBFGS(net.parameters(), max_iter=15)
    try:
        dde.optimizers.set_LBFGS_options(maxiter=40)
        model.train(verbose=0)
    finally:
        options.update(before)
    assert model.opt.stats.iterations == model.train_state.step >= 40
    assert len(model.losshistory.steps) > 2


def test_the_example_is_killed_and_resumes(tmp_path, capsys, dde):
    options = "--steps=8", "--points=200"
    folders = assert_goes_on_with_the_same_numbers("deepxde_burgers.py", tmp_path, *options, capsys=capsys)
    assert_same(*(torch.load(folder / "8.pt", weights_only=True) for folder in folders))
