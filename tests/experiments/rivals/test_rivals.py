"""Rivals in the form of ``torch.optim``: the recipe takes its parts' steps, vectors are minimised, budgets are kept."""

import importlib.util
from dataclasses import replace

import pytest
import torch
from laboratory import same_run

import adaqn
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import WHOLE
from adaqn.experiments.rivals.recipe import TORCH_LBFGS, AdamThenLBFGS
from adaqn.experiments.rivals.vectors import Scipy, TorchMin
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import run_one


def _is_missing(entry):
    """Is it one of ours that this version does not have?"""
    return isinstance(entry.kind, str) and not hasattr(adaqn, entry.kind.removeprefix("adaqn."))


SMALL = RunConfig(task="pinn", problem="poisson", layers=1, hidden=6, points=60, steps=40)
HERE = [name for name, entry in WHOLE.items() if not _is_missing(entry)]


def valley(start=(-1.2, 1.0)):
    """Rosenbrock's, with its minimum at (1, 1)."""
    p = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def closure():
        p.grad = None
        with torch.enable_grad():
            loss = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2
            loss.backward()
        return loss.detach()

    return p, closure


@pytest.mark.parametrize(
    "kind, method", [(Scipy, "L-BFGS-B"), (Scipy, "BFGS"), (TorchMin, "l-bfgs"), (TorchMin, "bfgs")]
)
@pytest.mark.filterwarnings("ignore:Method BFGS cannot handle")
def test_a_vector_is_minimised(kind, method):
    p, closure = valley()
    kind([p], method=method).step(closure)
    torch.testing.assert_close(p.detach(), torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind, method", [(Scipy, "BFGS"), (TorchMin, "bfgs")])
def test_a_line_search_has_no_step_size(kind, method):
    with pytest.raises(ValueError, match=r"lr must be 1, got 0\.5"):
        kind([valley()[0]], method=method, lr=0.5)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pytorch-minimize"):
        TorchMin([valley()[0]], method="bfgs")


def test_the_recipe_takes_adams_steps_and_then_those_of_lbfgs():
    p, closure = valley()
    both = AdamThenLBFGS([p], lr=0.01, adam_steps=5)
    q, other = valley()
    adam = torch.optim.Adam([q], lr=0.01)
    for _ in range(5):
        both.step(closure)
        other()
        adam.step()
    assert torch.equal(p, q)
    torch.optim.LBFGS([q], **TORCH_LBFGS).step(other)
    both.step(closure)
    assert torch.equal(p, q)


@pytest.mark.parametrize("optimizer", HERE)
@pytest.mark.parametrize("steps", [1, 40])
def test_each_learns_and_keeps_its_budget(optimizer, steps):
    run = open_run(replace(SMALL, optimizer=optimizer, steps=steps))
    calls = []
    run.model.register_forward_hook(lambda *_: calls.append(1) if torch.is_grad_enabled() else None)
    result = run.train()
    assert len(calls) == result.get("stopped_at", result["steps"]) <= steps
    assert run.metrics[-1]["step"] == steps
    if steps > 1:
        assert result["final"]["test_loss"] < run.metrics[0]["test_loss"]


@pytest.mark.parametrize("optimizer", HERE)
def test_interrupted_runs_end_with_the_same_bits(tmp_path, optimizer):
    """A minimisation in one call begins anew, and is the same one."""
    config = replace(SMALL, optimizer=optimizer)
    whole = run_one(config, tmp_path / "whole")

    def interrupt(progress):
        if progress.step >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(config, tmp_path / "stopped", None, interrupt)
    same_run(whole, run_one(config, tmp_path / "stopped"))


def test_options_reach_the_packages():
    with pytest.raises(UserError, match="torch-lbfgs has no option size"):
        open_run(replace(SMALL, optimizer="torch-lbfgs", options={"size": 3}))
    run = open_run(replace(SMALL, optimizer="scipy-lbfgs", options={"maxcor": 3}))
    assert run.optimizer.options == {"maxcor": 3}
