"""A misspelt key of a param group is an error that names the right one; notes of others pass, as in torch."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR

from adaqn import BFGS, LBFGS, OLBFGS, AdaQN

SLIPS = {
    "weight_deacy": "weight_decay",
    "weigth_decay": "weight_decay",
    "weight-decay": "weight_decay",
    "weightDecay": "weight_decay",
    "weight_decay_rate": "weight_decay",
    "wd": "weight_decay",
    "momentun": "momentum",
    "mometum": "momentum",
    "Momentum": "momentum",
    "learning_rate": "lr",
    "LR": "lr",
    "l_r": "lr",
}
NOTES = [
    *("name", "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "base_momentum", "max_momentum"),
    *("lr_scale", "lr_mult", "lr_multiplier", "wd_multiplier", "decay_mult", "weight_decay_mult", "decay", "no_decay"),
    *("layer", "layer_id", "is_bias", "fix_step", "group_name", "param_names", "step", "moments", "r", "l", "ls"),
]
"""What torch's schedulers, timm, MMEngine, DINOv2, Hugging Face's scripts and people write into groups."""


def parameter():
    return [nn.Parameter(torch.ones(3, 2))]


@pytest.mark.parametrize("slip, meant", SLIPS.items())
def test_a_slip_is_an_error_that_names_the_right_key(slip, meant):
    with pytest.raises(ValueError, match=f"'{slip}' in a param group would change nothing: write '{meant}'. To keep"):
        AdaQN([{"params": parameter(), slip: 0.1}])
    opt = AdaQN(parameter())
    with pytest.raises(ValueError, match=f"write '{meant}'"):
        opt.add_param_group({"params": parameter(), slip: 0.1})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("kind", [AdaQN, OLBFGS, LBFGS, BFGS], ids=lambda kind: kind.__name__)
def test_every_method_lets_notes_pass_and_finds_a_slip(kind):
    group = {"params": parameter(), **dict.fromkeys(NOTES, 1)}
    group["param_names"] = ["weight"]
    opt = kind([group])
    assert opt.param_groups[0]["name"] == 1
    with pytest.raises(ValueError, match="write 'lr'"):
        kind([{"params": parameter(), "learning_rate": 0.1}])


@pytest.mark.parametrize(
    "kind, slip, meant", [(AdaQN, "cycle_lenght", "cycle_length"), (LBFGS, "histroy_size", "history_size")]
)
def test_what_is_for_all_parameters_is_said_to_be(kind, slip, meant):
    with pytest.raises(ValueError, match=f"write '{meant}', and give it to the optimizer"):
        kind([{"params": parameter(), slip: 5}])


def test_a_method_without_momentum_is_not_told_to_have_one():
    OLBFGS([{"params": parameter(), "momentun": 0.9}])


def test_a_note_beside_the_right_key_is_no_slip():
    opt = AdaQN([{"params": parameter(), "lr": 0.1, "learning_rate": "tuned on the small model"}])
    assert opt.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    "schedule",
    [
        lambda opt: OneCycleLR(opt, 0.1, total_steps=10),
        lambda opt: CyclicLR(opt, 0.01, 0.1, cycle_momentum=True),
        lambda opt: CosineAnnealingLR(opt, 10),
        lambda opt: SWALR(opt, 0.05),
    ],
    ids=["one-cycle", "cyclic", "cosine", "swa"],
)
def test_groups_with_what_schedulers_added_can_be_given_to_another_optimizer(schedule):
    first = AdaQN([{"params": parameter(), "name": "head"}, {"params": parameter(), "weight_decay": 0.1}])
    schedule(first)
    second = AdaQN([dict(group) for group in first.param_groups])
    assert [set(group) for group in second.param_groups] == [set(group) for group in first.param_groups]
    second.load_state_dict(first.state_dict())
