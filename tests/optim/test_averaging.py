"""The growing average, and the modes in which it is in the place of the weights (D33)."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import adaqn
from adaqn import AdaQN, Outcome, PairOptions

STEPS = 43


def problem(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)
    x = torch.randn(400, 5, dtype=dtype)
    return model, x, torch.sin(x.float()).to(dtype)[:, :2]


def gradients(model, x, target, step):
    rows = slice(8 * step % 400, 8 * step % 400 + 8)
    model.zero_grad()
    nn.functional.mse_loss(model(x[rows]), target[rows]).backward()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def at_average(model, opt):
    with opt.averaged():
        return weights(model)


def by_hand(averages, lengths, c):
    """x from the accepted averages and their numbers of steps."""
    x, n = averages[0], lengths[0]
    for average, own in zip(averages[1:], lengths[1:], strict=True):
        n += own
        x = x + c * own / (n + c * own) * (average - x)
    return x


@pytest.mark.parametrize("c", [1.0, 8.0, 40.0])
@pytest.mark.parametrize("cycle_length", [5, "auto"])
def test_it_is_the_printed_recursion_with_weights_that_count_steps(c, cycle_length):
    model, x, target = problem()
    opt = AdaQN(model.parameters(), lr=0.02, reject="none", averaging=c, cycle_length=cycle_length)
    averages, lengths, sums, count = [], [], 0.0, 0
    for step in range(STEPS):
        cycles = opt.stats.cycles
        gradients(model, x, target, step)
        opt.step()
        sums, count = sums + weights(model), count + 1
        if opt.stats.cycles > cycles:
            averages.append(sums / count)
            lengths.append(count)
            sums, count = 0.0, 0
    assert len(averages) > 4
    torch.testing.assert_close(at_average(model, opt), by_hand(averages, lengths, c), rtol=1e-10, atol=1e-12)


def judged(verdicts, **options):
    """A run of one cycle per verdict after the first: (outcome, what is shown, the weights) at the end of each."""
    model, x, target = problem()
    told = iter([False, *verdicts])
    opt = AdaQN(model.parameters(), lr=0.02, averaging=8.0, reject=lambda new, old: next(told),
                monitor=adaqn.Monitor(model, nn.MSELoss(), (x, target)), **options)  # fmt: skip
    found = []
    for step in range(5 * (len(verdicts) + 1)):
        gradients(model, x, target, step)
        opt.step()
        if step % 5 == 4:
            found.append((opt.last_cycle.outcome, at_average(model, opt), weights(model)))
    return found


def test_rejected_cycles_never_enter_and_the_average_stays_on_a_rejection():
    found = judged([False, True, False, True, True, False])
    rejected = [outcome is Outcome.REJECTED for outcome, _, _ in found]
    assert rejected == [False, False, True, False, True, True, False]
    for is_rejected, (_, before, _), (_, now, _) in zip(rejected[1:], found, found[1:], strict=False):
        assert torch.equal(before, now) == is_rejected


def test_candidates_whose_pair_was_skipped_enter_and_stay_when_the_weights_return_beyond_them():
    """They were accepted: a later rejection, which returns to an older anchor, does not take them back (D33)."""
    found = judged([False, False, True], pairs=PairOptions(test=lambda ss, sy, yy, eps: False))
    (_, first, _), (second, entered, _), (third, again, _), (last, stays, behind) = found
    assert (second, third, last) == (Outcome.SKIPPED, Outcome.SKIPPED, Outcome.REJECTED)
    assert not torch.equal(first, entered)
    assert not torch.equal(entered, again)
    assert torch.equal(stays, again)
    assert torch.equal(behind, first)  # the anchor is the first average, and nothing else is known of it


def test_the_paper_shows_the_last_accepted_average():
    assert adaqn.PRESETS["paper"].averaging == 0.0
    assert adaqn.PRESETS["default"].averaging == 8.0
    model, x, target = problem()
    opt = AdaQN(model.parameters(), preset="paper", reject="none")
    at_average(model, opt)
    for step in range(10):
        gradients(model, x, target, step)
        opt.step()
    last = 0.0
    for step in range(10, 15):
        gradients(model, x, target, step)
        opt.step()
        last = last + weights(model) / 5
    torch.testing.assert_close(at_average(model, opt), last, rtol=1e-12, atol=1e-14)


def test_reset_history_restarts_it():
    model, x, target = problem()
    opt = AdaQN(model.parameters(), lr=0.02, reject="none")
    for step in range(STEPS):
        gradients(model, x, target, step)
        opt.step()
    opt.reset_history()
    assert torch.equal(at_average(model, opt), weights(model))
    first = 0.0
    for step in range(5):
        gradients(model, x, target, step)
        opt.step()
        first = first + weights(model) / 5
    torch.testing.assert_close(at_average(model, opt), first, rtol=1e-12, atol=1e-14)


# The modes


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("master", [False, True])
def test_evaluating_changes_nothing_of_the_run(dtype, master):
    runs = []
    for evaluates in (False, True):
        model, x, target = problem(dtype)
        storage = adaqn.StorageOptions(master_weights=master and dtype is torch.bfloat16)
        opt = AdaQN(model.parameters(), lr=0.02, reject="none", storage=storage)
        for step in range(STEPS):
            gradients(model, x, target, step)
            opt.step()
            if evaluates and step % 7 == 3:
                before, shown = weights(model), at_average(model, opt)
                opt.eval()
                opt.eval()
                assert torch.equal(weights(model), shown)
                with opt.averaged():
                    assert torch.equal(weights(model), shown)
                opt.train()
                opt.train()
                assert torch.equal(weights(model), before)
        runs.append((weights(model), at_average(model, opt)))
    for without, beside in zip(*runs, strict=True):
        assert torch.equal(without, beside)


@pytest.mark.parametrize("call", ["step", "reset_history"])
def test_a_step_is_refused_while_the_average_is_in_place(call):
    model, x, target = problem()
    opt = AdaQN(model.parameters(), lr=0.02, reject="none")
    opt.eval()  # before there is anything to show
    gradients(model, x, target, 0)
    with pytest.raises(RuntimeError, match=r"called after eval\(\).*call train\(\) first"):
        getattr(opt, call)()
    opt.train()
    for step in range(8):
        gradients(model, x, target, step)
        opt.step()
    opt.eval()
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"called after eval\(\).*call train\(\) first"):
        getattr(opt, call)()
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("way", ["state_dict", "deepcopy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inside", ["eval", "averaged"])
def test_saved_at_the_average_the_run_goes_on_as_if_it_had_not_stopped(inside, way, dtype):
    model, x, target = problem(dtype)
    opt = AdaQN(model.parameters(), lr=0.02, reject="none")
    for step in range(23):
        gradients(model, x, target, step)
        opt.step()
    block = opt.averaged() if inside == "averaged" else nullcontext(opt.eval())
    with block:
        if way == "deepcopy":
            other, other_opt = copy.deepcopy((model, opt))
        else:
            other = copy.deepcopy(model)  # what a checkpoint of the model holds now: the average
            other_opt = AdaQN(other.parameters(), lr=0.02, reject="none")
            other_opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    with pytest.raises(RuntimeError, match="call train"):
        other_opt.step()
    for m, o in ((model, opt), (other, other_opt)):
        o.train()
        for step in range(23, STEPS):
            gradients(m, x, target, step)
            o.step()
    assert torch.equal(weights(model), weights(other))
    assert torch.equal(at_average(model, opt), at_average(other, other_opt))


def test_inside_the_block_the_modes_stay():
    model, x, target = problem()
    opt = AdaQN(model.parameters(), lr=0.02, reject="none")
    for step in range(8):
        gradients(model, x, target, step)
        opt.step()
    before = weights(model)
    with opt.averaged():
        shown = weights(model)
        for call in (opt.eval, opt.train, opt.step, opt.reset_history):
            with pytest.raises(RuntimeError, match=r"inside averaged\(\): leave the block first"):
                call()
        assert torch.equal(weights(model), shown)
    assert torch.equal(weights(model), before)
    with pytest.raises(KeyError), opt.averaged():
        raise KeyError
    assert torch.equal(weights(model), before)


def test_its_vector_counts():
    model, _, _ = problem(torch.float32)
    n = sum(p.numel() for p in model.parameters())
    with_it, without = (AdaQN(model.parameters(), averaging=c, reject="none").state_size() for c in (8.0, 0.0))
    assert with_it - without == 4 * n


@pytest.mark.parametrize("value", [-1.0, float("nan"), "8"])
def test_bad_values_are_named(value):
    with pytest.raises((ValueError, TypeError), match="averaging"):
        AdaQN([nn.Parameter(torch.ones(2))], averaging=value)
