"""Steps that grow while the monitored loss falls in nearly every cycle (D37)."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaqn import PRESETS, AdaQN, Monitor, RejectOptions
from adaqn.core.acceptance import STEP_RECOVERY
from adaqn.core.growth import LONGER, RATE, SHARE, SHORTER, after_accepted, after_rejected
from scripted import follow


class Told:
    """A monitor that says what it is told to, one loss per evaluation."""

    def __init__(self, losses):
        self.losses = list(losses)

    def __call__(self):
        return torch.tensor(self.losses.pop(0), dtype=torch.float64)


def multipliers(losses, *, lr=1e-3, growth=8.0, saved_after=None, **options):
    """The multiplier after each cycle of one step; the first loss is that of the weights before the first step."""
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def make(*losses):
        reject = RejectOptions("factor", factor=1.5, growth=growth, window=10)
        return follow(AdaQN([w], lr=lr, reject=reject, cycle_length=1, warm_up=0, **options), *losses)

    # The candidate is evaluated first, and the weights before the first step with it.
    opt, found = make(losses[1], losses[0], *losses[2:]), []
    for cycle in range(len(losses) - 1):
        w.grad = torch.ones_like(w)
        opt.step()
        found.append(opt.stats.step_multiplier)
        if cycle == saved_after:
            state = copy.deepcopy(opt.state_dict())
            # A resumed run evaluates the anchor again.
            opt = make(losses[cycle + 2], losses[cycle + 1], *losses[cycle + 3 :])
            opt.load_state_dict(state)
    return found


FALLING = [2.0 - 0.01 * k for k in range(100)]


def test_steps_grow_while_the_loss_falls_up_to_the_limit():
    found = multipliers(FALLING)
    assert found[:3] == pytest.approx([LONGER, LONGER**2, LONGER**3])
    assert found[-1] == 8.0
    assert max(found) == 8.0


def test_steps_return_when_it_falls_no_more_and_never_below_the_step_size():
    found = multipliers([*FALLING[:30], *[FALLING[29] * 1.001**k for k in range(60)]])
    assert max(found) == pytest.approx(LONGER**29)
    assert found[-1] == 1.0
    assert min(found) == 1.0


def test_they_stand_still_where_the_usual_share_of_cycles_lowers_the_loss():
    """Four of five: the logarithm ends where it began."""
    value = 3.0
    for fell in [True, True, True, True, False] * 7:
        value = after_accepted(value, fell, largest=8.0)
    assert value == pytest.approx(3.0)
    assert (math.log(LONGER), math.log(SHORTER)) == pytest.approx((RATE * (1.0 - SHARE), -RATE * SHARE))


def test_a_rejection_takes_back_a_part_and_a_second_one_halves_what_is_left():
    found = multipliers([*FALLING[:30], 9.0, 9.0])  # each above 1.5 times the loss before
    assert found[-2] == pytest.approx(LONGER**29 * SHORTER)
    assert found[-1] == pytest.approx(LONGER**29 * SHORTER**2 / 2.0)


def test_after_halvings_steps_recover_before_they_grow():
    assert after_accepted(0.5, True, largest=8.0) == 0.5 * STEP_RECOVERY
    assert after_accepted(0.999, False, largest=8.0) == 1.0
    assert after_rejected(0.5) == 0.5


@given(st.lists(st.sampled_from([True, False, None, "rejected", "halved"])), st.floats(1.0, 100.0))
def test_the_multiplier_stays_within_its_bounds(cycles, largest):
    value = 1.0
    for cycle in cycles:
        if cycle in ("rejected", "halved"):
            before, value = value, after_rejected(value) / (2.0 if cycle == "halved" else 1.0)
            assert value <= before
        else:
            value = after_accepted(value, cycle, largest)
        assert 0.0 < value <= largest


def test_a_run_that_was_saved_goes_on_alike():
    losses = [*FALLING[:25], *[FALLING[24] * 1.001**k for k in range(5)], *FALLING[30:40]]
    assert multipliers(losses, saved_after=20) == multipliers(losses)


def test_a_smaller_limit_holds_for_a_saved_state_too():
    w = nn.Parameter(torch.ones(2))
    monitor = Told([FALLING[1], FALLING[0], *FALLING[2:]])
    opt = AdaQN([w], monitor=monitor, cycle_length=1, reject=RejectOptions("factor"))
    for _ in range(20):
        w.grad = torch.ones(2)
        opt.step()
    assert opt.stats.step_multiplier > 2.0
    other = AdaQN([w], monitor=lambda: 0.5, cycle_length=1, reject=RejectOptions("factor", growth=1.5))
    other.load_state_dict(opt.state_dict())
    w.grad = torch.ones(2)
    other.step()
    assert other.stats.step_multiplier <= 1.5


def test_a_step_is_as_much_longer_as_the_multiplier_says():
    """Weight decay too: it is scaled by the step size, as in AdamW."""
    w = nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = AdaQN(
        [w], lr=1e-3, weight_decay=0.1, monitor=Told([FALLING[1], FALLING[0], *FALLING[2:]]), cycle_length=1,
        scaling="identity", momentum=0.0, warm_up=0,
    )  # fmt: skip
    for _ in range(30):
        w.grad = torch.ones_like(w)
        opt.step()
    multiplier, before = opt.stats.step_multiplier, w.item()
    w.grad = torch.ones_like(w)
    opt.step()
    assert multiplier == pytest.approx(LONGER**30)
    assert before - w.item() == pytest.approx(multiplier * 1e-3 * (1.0 + 0.1 * before))


def test_a_tensor_for_the_step_size_changes_nothing():
    lr = torch.tensor(1e-3, dtype=torch.float64)
    assert multipliers(FALLING, lr=lr) == multipliers(FALLING)


def test_without_a_monitor_or_a_test_steps_keep_their_length():
    assert set(multipliers(FALLING, growth=1.0)) == {1.0}
    w = nn.Parameter(torch.ones(2))
    opt = AdaQN([w], reject="none", cycle_length=1, monitor=Told(FALLING))
    for _ in range(20):
        w.grad = torch.ones(2)
        opt.step()
    assert opt.stats.step_multiplier == 1.0


def test_a_step_size_that_is_ten_times_too_small_is_made_up_for():
    """A real model: with growth a tenth of the step size ends lower than without."""

    def end(growth):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        x = torch.randn(256, 4)
        y = x.sum(1, keepdim=True).sin()
        loss_fn = nn.MSELoss()
        monitor = Monitor(model, loss_fn, (x[:128], y[:128]))
        opt = AdaQN(model.parameters(), lr=4e-4, monitor=monitor, reject=RejectOptions(growth=growth))
        for step in range(300):
            opt.zero_grad()
            part = slice(32 * (step % 8), 32 * (step % 8 + 1))
            loss_fn(model(x[part]), y[part]).backward()
            opt.step()
        with torch.no_grad():
            return float(loss_fn(model(x), y))

    assert end(8.0) < 0.8 * end(1.0)


def test_the_paper_has_none():
    assert PRESETS["paper"].reject.growth == 1.0
    assert PRESETS["default"].reject.growth == 8.0


@pytest.mark.parametrize("value", [0.5, -1.0, math.inf, math.nan, "x", True])
def test_bad_values_are_named(value):
    with pytest.raises((ValueError, TypeError), match="growth"):
        AdaQN([nn.Parameter(torch.ones(1))], reject=RejectOptions(growth=value))
