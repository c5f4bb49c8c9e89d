"""Every mistake gets one clear error that names the value and the limit, and changes nothing."""

import math

import pytest
import torch
from torch import nn

from adaqn import AdaQN
from oracles import Vector, quiet


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"lr": -0.1}, ValueError, r"lr must be a finite number of at least 0, got -0\.1"),
        ({"lr": math.nan}, ValueError, "lr must be.*got nan"),
        ({"lr": math.inf}, ValueError, "lr must be.*got inf"),
        ({"lr": torch.tensor(-1.0)}, ValueError, "lr must be"),
        ({"lr": torch.tensor([0.1, 0.2])}, ValueError, r"lr must be a single number.*\(2,\)"),
        ({"weight_decay": -1.0}, ValueError, r"weight_decay must be.*got -1\.0"),
        ({"cycle_length": 0}, ValueError, "cycle_length must be at least 1, got 0"),
        ({"cycle_length": 2.5}, TypeError, r"cycle_length must be a whole number, got 2\.5"),
        ({"memory_size": 0}, ValueError, "memory_size must be at least 1, got 0"),
        ({"memory_size": True}, TypeError, "memory_size must be a whole number"),
        ({"fisher_size": -3}, ValueError, "fisher_size must be at least 1, got -3"),
        ({"fisher_batch_size": 0}, ValueError, "fisher_batch_size must be at least 1"),
        ({"curvature_eps": -1e-4}, ValueError, "curvature_eps must be.*got -0.0001"),
        ({"curvature_eps": math.nan}, ValueError, "curvature_eps must be.*got nan"),
        ({"scaling_eps": 0.0}, ValueError, r"scaling_eps must be a positive number, got 0\.0"),
        ({"reject_factor": 0.9}, ValueError, r"reject_factor must be.*at least 1, got 0\.9"),
        ({"reject_factor": math.nan}, ValueError, "reject_factor must be"),
        ({"anchor_patience": 0}, ValueError, "anchor_patience must be at least 1"),
        ({"reject_patience": 0}, ValueError, "reject_patience must be at least 1"),
        ({"scaling": "adamax"}, ValueError, "scaling must be one of.*'adagrad'.*got 'adamax'"),
        ({"scaling": "identity", "scaling_eps": 1e-4}, ValueError, "no meaning with scaling='identity'"),
        ({"curvature": "hessian"}, ValueError, "curvature must be one of.*got 'hessian'"),
        ({"curvature_test": "angle"}, ValueError, "curvature_test must be one of.*'scale_free'"),
        ({"acceptance": "always"}, ValueError, "acceptance must be one of.*'relative'"),
        ({"acceptance": "relative", "reject_factor": 1.0}, ValueError, "between 0 and 1"),
        ({"direction": "newton"}, ValueError, "direction must be one of.*'gram'"),
        ({"on_nonfinite": "ignore"}, ValueError, "on_nonfinite must be one of.*'raise'"),
        ({"history_dtype": torch.float16}, ValueError, "history_dtype must be.*got torch.float16"),
        ({"fisher_dtype": torch.int8}, ValueError, "fisher_dtype must be.*got torch.int8"),
        ({"momentum": 1.0}, ValueError, r"momentum must lie in \[0, 1\), got 1\.0"),
        ({"momentum": -0.5}, ValueError, r"momentum must lie in \[0, 1\), got -0\.5"),
        ({"momentum_on_reject": "halve"}, ValueError, "momentum_on_reject must be one of.*'reset'.*got 'halve'"),
        ({"cycle_length": "long"}, ValueError, "cycle_length must be one of.*'auto'.*got 'long'"),
        ({"min_cycle_length": 0}, ValueError, "min_cycle_length must be at least 1, got 0"),
        ({"min_cycle_length": 9, "max_cycle_length": 4}, ValueError, "min_cycle_length=9 exceeds max_cycle_length=4"),
        ({"acceptance": "paired", "paired_level": -1.0}, ValueError, r"paired_level must be.*at least 0, got -1\.0"),
        ({"reject_window": -1}, ValueError, "reject_window must be at least 0, got -1"),
        ({"reject_window": 2.5}, TypeError, r"reject_window must be a whole number, got 2\.5"),
        ({"preset": "fast"}, ValueError, "preset must be one of.*'modern'.*'paper'.*got 'fast'"),
        ({"monitor": 0.3}, TypeError, "monitor must be a function without arguments.*got float"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        AdaQN([nn.Parameter(torch.ones(2))], **options)


def test_no_parameters():
    with pytest.raises(ValueError, match="empty parameter list"):
        AdaQN([])


def test_all_frozen():
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        AdaQN([nn.Parameter(torch.ones(2), requires_grad=False)])


def test_frozen_all_of_it_later():
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w])
    w.grad = torch.ones(2)
    w.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        opt.step()
    assert torch.equal(w, torch.ones(2))


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


def test_options_of_the_whole_optimizer_in_a_group():
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"\['memory_size'\] in a param group.*give it to the optimizer"):
        AdaQN([{"params": [w], "memory_size": 3}])
    with pytest.raises(ValueError, match=r"lr must be.*got -1\.0"):
        AdaQN([{"params": [w], "lr": -1.0}])


def test_a_part_of_ones_own_with_a_meaningless_number_beside_it():
    from adaqn.core.scaling import Adam

    with pytest.raises(ValueError, match="beside a scaling of your own"):
        AdaQN([nn.Parameter(torch.ones(2))], scaling=Adam(), scaling_eps=1e-6)


def test_lr_zero_is_allowed():
    AdaQN([nn.Parameter(torch.ones(2))], lr=0.0)


def test_repr_shows_the_groups():
    assert "lr: 0.05" in repr(quiet(Vector(torch.ones(12)).parameters()))
