"""Values in a state that ended in another error than the one that is promised, in a crash, or in none."""

import math

import numpy as np
import pytest
import torch
from test_drawn_states import EVERY, PRESETS, Trained
from torch import nn

import drawn
from methods import network

NUMBERS = {
    "complex": lambda: np.complex64(1),
    "beyond whole numbers": lambda: 1.7e308,
    "bytes": lambda: bytearray(b"x"),
    "a deep list": lambda: drawn.nested_list(5_000),
    "fake": lambda: drawn.fake(torch.tensor(1.0)),
    "freed": lambda: drawn.freed(torch.tensor(1.0)),
    "a parameter": lambda: nn.Parameter(torch.tensor(-1.0)),
    "eight bits": lambda: torch.tensor(-1.0).to(torch.float8_e4m3fn),
}
TENSORS = {
    "fake": drawn.fake,
    "freed": drawn.freed,
    "never initialized": lambda t: nn.UninitializedParameter(),
    "nested": drawn.TENSORS["nested"],
}


def refused(trained, place, name, value):
    state = drawn.containers_copied(trained.state)
    state[place][0][name] = value
    with pytest.raises(ValueError, match=r"saved|state") as caught:
        trained.opt.load_state_dict(state)
    assert "\n" not in str(caught.value)
    assert trained.is_unchanged()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@EVERY
def test_what_is_no_number_or_has_no_data_is_one_error(method):
    trained = Trained(method)
    for name, value in trained.state["state"][0].items():
        if isinstance(value, torch.Tensor) and value.numel():
            for make in TENSORS.values():
                refused(trained, "state", name, make(value))
        elif name in ("format", "steps", "n_iter", "window_steps", "pairs_start", "pairs_size"):
            for make in NUMBERS.values():
                refused(trained, "state", name, make())
    for kind in ("freed", "fake", "a deep list"):
        refused(trained, "param_groups", "lr", NUMBERS[kind]())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_anchor_that_no_cycle_can_have_accepted_is_refused(value):
    """It was loaded, and a later step blamed the monitoring batch."""
    trained = Trained(PRESETS[0])
    refused(trained, "state", "anchor", torch.full_like(trained.state["state"][0]["anchor"], value))


def test_an_anchor_before_the_first_cycle_may_be_anything():
    """It is the weights as they were given, and such a state can be saved."""
    model = network()
    with torch.no_grad():
        model[0].bias.fill_(math.nan)
    opt = PRESETS[1].make(model)
    PRESETS[1].advance(opt, model, 0)
    state = opt.state_dict()
    assert not bool(state["state"][1]["anchor"].isfinite().any())
    opt.load_state_dict(state)
