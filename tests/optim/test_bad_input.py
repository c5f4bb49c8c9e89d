"""Every mistake gets one clear error that names the value and the limit, and changes nothing."""

import math

import pytest
import torch
from torch import nn

from adaqn import (
    AccumulatedFisher,
    Adagrad,
    Adam,
    AdaQN,
    Kronecker,
    PairOptions,
    RejectOptions,
    RMSProp,
    StorageOptions,
)
from oracles import Vector, quiet


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"lr": -0.1}, ValueError, r"lr must be a finite number of at least 0, got -0\.1"),
        ({"lr": math.nan}, ValueError, "lr must be.*got nan"),
        ({"lr": math.inf}, ValueError, "lr must be.*got inf"),
        ({"lr": 1e300}, ValueError, r"lr must be at most 3\.403e\+38, the largest number of float32, got 1e\+300"),
        ({"lr": torch.tensor(-1.0)}, ValueError, "lr must be"),
        ({"lr": torch.tensor([0.1, 0.2])}, ValueError, r"Tensor lr must be 1-element.*\(2,\)"),
        ({"lr": torch.tensor(1j)}, TypeError, "lr must be a number, got a tensor of torch.complex64"),
        (
            {"lr": torch.tensor(1.0).to(torch.float8_e5m2)},
            TypeError,
            "lr must be a number, got a tensor of torch.float8",
        ),
        ({"weight_decay": -1.0}, ValueError, r"weight_decay must be.*got -1\.0"),
        ({"cycle_length": 0}, ValueError, "cycle_length must be at least 1, got 0"),
        ({"cycle_length": 2.5}, TypeError, r"cycle_length must be.*got 2\.5"),
        ({"cycle_length": "long"}, ValueError, "cycle_length must be.*'auto'.*got 'long'"),
        ({"cycle_length": (0, 4)}, ValueError, "cycle_length.*at least 1, got 0"),
        ({"cycle_length": (9, 4)}, ValueError, r"cycle_length=\(9, 4\)"),
        ({"cycle_length": (2, 3, 4)}, (TypeError, ValueError), r"cycle_length must be.*got \(2, 3, 4\)"),
        ({"scaling": "adamax"}, ValueError, "scaling must be one of.*'adagrad'.*got 'adamax'"),
        ({"on_nonfinite": "ignore"}, ValueError, "on_nonfinite must be one of.*'raise'"),
        ({"momentum": 1.0}, ValueError, r"momentum must lie in \[0, 1\), got 1\.0"),
        ({"momentum": -0.5}, ValueError, r"momentum must lie in \[0, 1\), got -0\.5"),
        ({"nesterov": 1}, TypeError, "nesterov must be True or False, got 1"),
        ({"preset": "fast"}, ValueError, "preset must be one of.*'modern'.*'paper'.*got 'fast'"),
        ({"monitor": 0.3}, TypeError, "monitor must be a function without arguments.*got float"),
        ({"reject": "always"}, ValueError, "reject must be one of.*'relative'.*got 'always'"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        AdaQN([nn.Parameter(torch.ones(2))], **options)


@pytest.mark.parametrize(
    "part, fields, error, message",
    [
        ("pairs", {"memory_size": -1}, ValueError, "memory_size must be at least 0, got -1"),
        ("pairs", {"memory_size": True}, TypeError, "memory_size must be a whole number"),
        ("pairs", {"fisher_size": -3}, ValueError, "fisher_size must be at least 1, got -3"),
        ("pairs", {"eps": -1e-4}, ValueError, r"eps of the curvature test must be.*got -0\.0001"),
        ("pairs", {"eps": math.nan}, ValueError, "eps of the curvature test must be.*got nan"),
        ("pairs", {"eps": "small"}, TypeError, "eps of the curvature test must be a number, got 'small'"),
        ("pairs", {"anchor_patience": -1}, ValueError, "anchor_patience must be at least 0, got -1"),
        ("pairs", {"curvature": "hessian"}, ValueError, "curvature must be one of.*got 'hessian'"),
        ("pairs", {"curvature": 5, "memory_size": 3}, TypeError, "curvature must be a name or a Curvature, got 5"),
        ("pairs", {"test": "angle"}, ValueError, "test must be one of.*'scale_free'"),
        ("pairs", {"test": 5}, TypeError, "test must be a name or a function, got 5"),
        ("pairs", {"direction": "newton"}, ValueError, "direction must be one of.*'gram'"),
        ("pairs", {"direction": 5}, TypeError, "direction must be a name or a function, got 5"),
        ("pairs", {"damping": "much"}, TypeError, "damping must be a number, got 'much'"),
        ("reject", {"test": "always"}, ValueError, "must be one of.*'relative'.*got 'always'"),
        ("reject", {"test": 5}, TypeError, "must be.*got 5"),
        ("reject", {"test": "factor", "factor": 0.9}, ValueError, r"factor.*must be.*at least 1, got 0\.9"),
        ("reject", {"test": "factor", "factor": math.nan}, ValueError, "factor.*must be.*got nan"),
        ("reject", {"test": "relative", "factor": 1.0}, ValueError, "between 0 and 1"),
        ("reject", {"test": "paired", "level": -1.0}, ValueError, r"level.*must be.*at least 0, got -1\.0"),
        ("reject", {"factor": "big"}, TypeError, "factor must be a number, got 'big'"),
        ("reject", {"reset_momentum": "no"}, TypeError, "reset_momentum must be True or False, got 'no'"),
        ("reject", {"patience": -1}, ValueError, "patience must be at least 0, got -1"),
        ("reject", {"window": -1}, ValueError, "window must be at least 0, got -1"),
        ("reject", {"window": 2.5}, TypeError, r"window must be a whole number, got 2\.5"),
        ("storage", {"history_dtype": torch.float16}, ValueError, "history_dtype must be.*got torch.float16"),
        ("storage", {"master_weights": "yes"}, TypeError, "master_weights must be True or False, got 'yes'"),
        ("storage", {"fisher_device": 5}, ValueError, "fisher_device must be a device such as 'cpu', got 5"),
        ("storage", {"fisher_device": "abacus"}, ValueError, "fisher_device must be a device.*got 'abacus'"),
        ("storage", {"fisher_dtype": torch.int8}, ValueError, "fisher_dtype must be.*got torch.int8"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_fields(part, fields, error, message):
    """A mistake in a dataclass is said when that is made, or by the optimizer that it is given to."""
    kind = {"pairs": PairOptions, "reject": RejectOptions, "storage": StorageOptions}[part]
    with pytest.raises(error, match=message):
        AdaQN([nn.Parameter(torch.ones(2))], **{part: kind(**fields)})


@pytest.mark.parametrize("make", [Adagrad, RMSProp, Adam, Kronecker])
def test_the_eps_of_h0(make):
    with pytest.raises(ValueError, match=r"eps.* must be a positive number, got 0\.0"):
        make(eps=0.0)


def test_the_batch_size_of_the_fisher_matrix():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        AdaQN([nn.Parameter(torch.ones(2))], pairs=PairOptions(curvature=AccumulatedFisher(10, batch_size=0)))


def test_no_parameters():
    with pytest.raises(ValueError, match="empty parameter list"):
        AdaQN([])


def test_sparse_gradients():
    embedding = nn.Embedding(5, 3, sparse=True)
    opt = quiet(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    before = embedding.weight.detach().clone()
    with pytest.raises(RuntimeError, match=r"parameter 0 of shape \(5, 3\) has a sparse gradient.*sparse=False"):
        opt.step()
    assert torch.equal(embedding.weight, before)
    assert opt.stats.steps == 0


def test_two_devices():
    here, there = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match=r"several devices \(cpu, meta\).*one device"):
        AdaQN([here, there])
    opt = quiet([here])
    with pytest.raises(ValueError, match="several devices"):
        opt.add_param_group({"params": [there]})
    assert len(opt.param_groups) == 1
    here.grad = torch.ones(2)
    opt.step()
    assert opt.stats.steps == 1


def test_options_of_the_whole_optimizer_in_a_group():
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"'pairs' in a param group.*give it to the optimizer"):
        AdaQN([{"params": [w], "pairs": PairOptions(memory_size=3)}])
    with pytest.raises(ValueError, match=r"lr must be.*got -1\.0"):
        AdaQN([{"params": [w], "lr": -1.0}])


def test_repr_shows_the_groups():
    assert "lr: 0.05" in repr(quiet(Vector(torch.ones(12)).parameters()))
