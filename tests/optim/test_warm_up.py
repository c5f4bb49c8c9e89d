"""Warm-up inside the optimizer."""

import copy

import pytest
import torch
from torch import nn

from adaqn import PRESETS, AdaQN


def steps(count, *, poisoned=(), saved_at=None, **options):
    """How far a weight moves in each step with H0 = I and gradients of 1."""
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def make():
        return AdaQN([w], lr=1.0, reject="none", scaling="identity", momentum=0.0, **options)

    opt, found = make(), []
    for step in range(count):
        before = w.item()
        w.grad = torch.full_like(w, float("nan") if step in poisoned else 1.0)
        opt.step()
        found.append(before - w.item())
        if step == saved_at:
            state = copy.deepcopy(opt.state_dict())
            opt = make()
            opt.load_state_dict(state)
    return found


def test_the_steps_rise_to_the_step_size_and_stay_there():
    assert steps(4, warm_up=4, cycle_length=100) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert steps(8, warm_up=4, cycle_length=100)[4:] == [1.0] * 4
    assert steps(2, warm_up=0) == [1.0, 1.0]


def test_a_gradient_that_is_not_finite_counts_alike_whether_the_host_knows_it_or_not():
    expected = steps(9, warm_up=6, cycle_length=100, poisoned=(2,))
    assert expected[2] == 0.0
    assert steps(9, warm_up=6, cycle_length=100, poisoned=(2,), saved_at=3) == expected


def test_the_paper_has_none():
    assert PRESETS["paper"].warm_up == 0


@pytest.mark.parametrize("value", [-1, 1.5, "x"])
def test_bad_values_are_named(value):
    with pytest.raises((ValueError, TypeError), match="warm_up"):
        steps(1, warm_up=value)
