"""Defects of the public codes of this method, each held off by name."""

import math
import random
import subprocess
import sys

import pytest
import torch

import inside
from adaqn import PairOptions
from adaqn.core.pairs import absolute
from inside import number
from oracles import NoisyValley, Vector, as_printed, quiet, run
from scripted import follow


@pytest.mark.parametrize("fisher_size", [10, 60])
def test_y_is_normalised_by_the_number_of_gradients(fisher_size):
    """minSQN sums instead: its curvature grows with the size of F̃."""
    problem = NoisyValley()
    model, gradients = Vector(problem.w0), []
    opt = quiet(model.parameters(), cycle_length=2, pairs=PairOptions(fisher_size=fisher_size))
    for k in range(60):
        gradients.append(problem.gradient(model.vector(), k))
        run(opt, model, problem, range(k, k + 1))
    s, y = inside.pairs(opt)[-1]
    G = torch.stack(gradients[-fisher_size:])
    torch.testing.assert_close(y, G.T @ (G @ s) / fisher_size, rtol=1e-9, atol=1e-12)


def test_curvature_is_measured_against_s_not_y():
    """minSQN compares s·y with ε y·y."""
    assert absolute(ss=1.0, sy=1e-3, yy=1e6, eps=1e-4)
    assert not absolute(ss=1.0, sy=1e-5, yy=1e-6, eps=1e-4)


def test_rejection_clears_the_fisher_container():
    """minSQN keeps the gradients that led to the rejected step."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = follow(as_printed(model.parameters(), cycle_length=4), 1.0, 5.0)
    run(opt, model, problem, range(8))
    assert opt.stats.rejected == 1
    assert number(opt, "curvature_size") == 0


def test_rejection_does_not_livelock():
    """minSQN does not advance its counter after a rejection and repeats the same cycle for ever."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = follow(as_printed(model.parameters(), cycle_length=2), 1.0, 5.0, 0.9, 0.8)
    run(opt, model, problem, range(8))
    stats = opt.stats
    assert (stats.steps, stats.cycles, stats.rejected, stats.stored) == (8, 4, 1, 2)


def test_no_step_goes_uphill_with_the_adagrad_scaling():
    """stochQN scales by g/√(G+ε) instead of 1/√(G+ε) once a pair is stored: a quarter of its steps go uphill."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=2, lr=0.01)
    for k in range(200):
        before = model.vector()
        run(opt, model, problem, range(k, k + 1))
        assert (model.vector() - before) @ problem.gradient(before, k) < 0
    assert opt.stats.pairs == 10


def test_one_nan_gradient_is_not_fatal():
    """stochQN never recovers from one."""
    problem = NoisyValley()
    model, untouched = Vector(problem.w0), Vector(problem.w0)
    opt, other = quiet(model.parameters(), cycle_length=3), quiet(untouched.parameters(), cycle_length=3)
    run(opt, model, problem, range(10))
    model.set_gradient(torch.full((problem.n,), math.nan))
    opt.step()
    ours = run(opt, model, problem, range(10, 200))
    theirs = run(other, untouched, problem, range(200))
    assert torch.equal(ours[0], theirs[10]), (
        "but for the end of the cycle, which comes one step earlier, nothing changed"
    )
    assert problem.loss(ours[-1]) < 1.1 * problem.loss(theirs[-1])


def test_numpy_is_not_needed():
    """stochQN no longer installs beside today's numpy; this library imports none."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch, adaqn\n"
        "w = torch.nn.Parameter(torch.ones(3)); o = adaqn.AdaQN([w], reject='none', preset='paper')\n"
        "for _ in range(12):\n    w.grad = w.detach() + torch.rand(3); o.step()\n"
        "print(o.stats.stored, [m for m in sys.modules if m.split('.')[0] in ('matplotlib', 'rich', 'optuna')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 []"


def test_random_source_is_not_touched():
    """Python's and torch's generators give the same numbers with and without the optimizer."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), float(torch.rand(())))
    random.seed(1)
    torch.manual_seed(1)
    run(quiet(model.parameters(), cycle_length=2), model, problem, range(10))
    assert (random.random(), float(torch.rand(()))) == expected
