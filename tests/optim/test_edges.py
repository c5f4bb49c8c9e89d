"""What a stranger would try: modes, shared parts, failures in the middle, weights that are no numbers."""

import copy
import math
import re
import warnings

import pytest
import torch
from torch import nn

import inside
from adaqn import AccumulatedFisher, Adagrad, Adam, AdaQN, EmpiricalFisher, Monitor, PairOptions, StorageOptions
from inside import kept
from oracles import NO_PAIRS, SMALL, NoisyValley, Vector, as_printed, quiet, run, with_history


def test_evaluation_in_inference_mode_does_no_harm_to_later_steps():
    problem = NoisyValley()
    model, plain = Vector(problem.w0), Vector(problem.w0)
    opt, other = (quiet(m.parameters(), cycle_length=3) for m in (model, plain))
    run(opt, model, problem, range(7))
    with torch.inference_mode(), opt.averaged():
        pass
    expected = run(other, plain, problem, range(30))[7:]
    assert torch.equal(run(opt, model, problem, range(7, 30)), expected)


def test_a_part_given_to_two_optimizers_serves_both():
    problem, shared = NoisyValley(), Adagrad()
    models = [Vector(problem.w0), Vector(problem.w0), Vector(problem.w0)]
    a, b = (quiet(model.parameters(), scaling=shared) for model in models[:2])
    alone = quiet(models[2].parameters())
    for k in range(30):
        for opt, model in zip((a, b, alone), models, strict=True):
            run(opt, model, problem, range(k, k + 1))
    assert torch.equal(models[0].vector(), models[2].vector())
    assert torch.equal(models[1].vector(), models[2].vector())


class Failing(AccumulatedFisher):
    """Raises once, after it has begun to write its result."""

    fail = False

    def product(self, s, candidate, out):
        if self.fail:
            out.zero_()
            raise MemoryError("no memory for the backward pass")
        return super().product(s, candidate, out)


def test_a_curvature_that_fails_does_not_poison_the_next_pair():
    problem = NoisyValley()
    model, plain = Vector(problem.w0), Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=3, pairs=PairOptions(curvature=Failing(100)))
    other = quiet(plain.parameters(), cycle_length=3)
    run(opt, model, problem, range(5))
    inside.state(opt).curvature.fail = True
    with pytest.raises(MemoryError):
        run(opt, model, problem, range(5, 6))
    path = run(other, plain, problem, range(6))
    assert torch.equal(model.vector(), path[-1])
    torch.testing.assert_close(kept(opt, "window"), path[3:].sum(0))


def test_the_monitor_sees_the_candidate_inside_autocast():
    model = nn.Linear(8, 8)
    monitor = Monitor(model, nn.MSELoss(), (torch.randn(4, 8), torch.randn(4, 8)), autocast=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        before = monitor()
        with torch.no_grad():
            model.weight.mul_(3.0)
        assert not torch.equal(monitor(), before)


def test_a_buffer_that_is_assigned_anew_comes_back():
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("h", torch.zeros(2))

        def forward(self, x):
            self.h = 0.5 * self.h + 1.0
            return self.linear(x) + self.h

    model = Stateful()
    monitor = Monitor(model, nn.MSELoss(), (torch.randn(4, 2), torch.randn(4, 2)))
    assert torch.equal(monitor(), monitor())
    assert torch.equal(model.h, torch.zeros(2))


def test_weights_that_are_no_numbers_are_one_error_and_leave_the_step_size_alone():
    problem = NoisyValley()
    model = Vector(problem.w0)
    with torch.no_grad():
        model.pieces[1].fill_(math.nan)
    opt = quiet(model.parameters(), cycle_length=5)
    model.set_gradient(torch.full((12,), math.nan))
    for _ in range(4):
        opt.step()
    with pytest.raises(FloatingPointError, match=r"load good weights, then call opt\.reset_history"):
        opt.step()  # the end of the cycle, where it shows (D13)
    model.load_state_dict(Vector(problem.w0).state_dict())
    opt.reset_history()
    run(opt, model, problem, range(20))
    assert opt.stats.step_multiplier == 1.0
    assert opt.stats.steps == 20


def test_a_change_of_dtype_in_mid_training_is_noticed():
    problem = NoisyValley()
    model = Vector(problem.w0).float()
    opt = with_history(model, problem)
    model.double()
    with pytest.warns(UserWarning, match="restarts"):
        run(opt, model, problem, range(23, 24))
    assert opt.state[model.pieces[1]]["anchor"].dtype == torch.float64


def test_a_parameter_of_another_shape_starts_anew():
    w = nn.Parameter(torch.ones(3))
    opt = quiet([w])
    w.grad = torch.ones(3)
    opt.step()
    w.grad, w.data = None, torch.ones(5)
    w.grad = torch.ones(5)
    with pytest.warns(UserWarning, match="restarts"):
        opt.step()
    assert opt.state[w]["anchor"].shape == (5,)


def test_master_weights_survive_a_new_group():
    problem = NoisyValley()
    model = Vector(problem.w0).bfloat16()
    opt = with_history(model, problem, storage=StorageOptions(master_weights=True))
    before = kept(opt, "master")
    opt.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.bfloat16))]})
    opt.param_groups[0]["lr"] = 0.0
    with pytest.warns(UserWarning, match="restarts"):
        run(opt, model, problem, range(23, 24))
    assert torch.equal(kept(opt, "master")[:12], before)
    assert torch.equal(kept(opt, "anchor")[:12], before)


@pytest.mark.parametrize("scaling", ["rmsprop", "adam"])
def test_absent_gradients_do_not_age_h0(scaling):
    """As in torch's own optimizers."""
    make = {
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.0, 0.999)),
    }[scaling]
    problem = NoisyValley()
    ours, theirs = Vector(problem.w0), Vector(problem.w0)
    a, b = quiet(ours.parameters(), lr=0.01, scaling=scaling, pairs=NO_PAIRS), make(theirs.parameters())
    for k in range(40):
        for model in (ours, theirs):
            model.set_gradient(problem.gradient(theirs.vector(), k))
            if 10 < k < 35:
                model.pieces[1].grad = None
        a.step()
        b.step()
    torch.testing.assert_close(ours.vector(), theirs.vector(), rtol=1e-12, atol=1e-12)


def test_warm_start_refuses_another_decay_and_things_that_are_no_state():
    model = Vector(torch.ones(12))
    model.set_gradient(torch.ones(12))
    source = torch.optim.Adam(model.parameters(), betas=(0.9, 0.9))
    source.step()
    with pytest.raises(ValueError, match=r"decay of 0\.9 and this H0 with 0\.999.*scaling=Adam\(decay=0\.9\)"):
        quiet(model.parameters(), scaling="adam").warm_start(source)
    quiet(model.parameters(), scaling=Adam(decay=0.9)).warm_start(source)
    for nonsense in ({}, 5):
        with pytest.raises(ValueError, match="needs a torch optimizer or its state_dict"):
            quiet(model.parameters(), scaling="adam").warm_start(nonsense)


def test_weights_loaded_after_a_warm_start_are_where_a_rejection_returns_to():
    problem = NoisyValley()
    model = Vector(torch.zeros(12, dtype=torch.float64))
    model.set_gradient(torch.ones(12))
    source = torch.optim.Adagrad(model.parameters(), lr=0.0)
    source.step()
    values = iter([math.nan, 1.0])
    opt = as_printed(model.parameters(), cycle_length=2, monitor=lambda: next(values))
    opt.warm_start(source)
    model.load_state_dict(Vector(problem.w0).state_dict())
    run(opt, model, problem, range(2))
    assert opt.stats.rejected == 1
    assert torch.equal(model.vector(), problem.w0)


def test_a_fixed_monitor_that_breaks_later_is_an_error_and_a_rotating_one_a_warning():
    problem = NoisyValley()

    class Rotating:
        def __call__(self):
            return math.nan

        def advance(self):
            pass

    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), lr=0.01, cycle_length=2, monitor=lambda: 1.0)
    run(opt, model, problem, range(4))
    opt.monitor = Rotating()
    with pytest.warns(UserWarning, match="judges nothing") as caught:
        run(opt, model, problem, range(4, 10))
    assert len(caught) == 1
    opt.monitor = lambda: math.nan
    with pytest.raises(ValueError, match="at the last accepted average, nan"):
        run(opt, model, problem, range(10, 12))


def test_events_of_a_maximizer_show_what_the_monitor_returned():
    problem = NoisyValley()
    model, events = Vector(problem.w0), []
    opt = as_printed(model.parameters(), cycle_length=1, monitor=lambda: 0.83, maximize=True, on_cycle=events.append)
    run(opt, model, problem, range(2))
    assert (events[1].candidate_loss, events[1].anchor_loss) == (0.83, 0.83)


def test_warnings_point_at_the_line_of_the_user():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), cycle_length=1)
    model.set_gradient(problem.gradient(model.vector(), 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.step()
    assert [w.filename for w in caught] == [__file__]


def test_a_pair_whose_square_underflows_is_skipped():
    w = nn.Parameter(torch.ones(2))
    pairs = PairOptions(test="scale_free", fisher_size=1)
    opt = quiet([w], lr=1e12, scaling="barzilai_borwein", cycle_length=1, pairs=pairs)
    for _ in range(4):
        w.grad = torch.full((2,), 1e-12)
        opt.step()
    assert (opt.stats.stored, opt.stats.skipped) == (0, 3)
    assert opt.scaling.factor == 1.0


def test_no_test_of_the_users_own_stores_a_pair_without_curvature():
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w], lr=0.0, pairs=PairOptions(test=lambda *_: True), cycle_length=1)
    for _ in range(4):
        w.grad = torch.ones(2)
        opt.step()
    assert opt.stats.skipped == 3
    assert w.isfinite().all()


def test_a_tensor_lr_of_one_element_is_a_number():
    weights = []
    for lr in (0.1, torch.tensor([0.1])):
        w = nn.Parameter(torch.tensor(1.0))
        opt = quiet([w], lr=lr, weight_decay=0.1)
        for _ in range(12):
            w.grad = w.detach().clone()
            opt.step()
        weights.append(w.detach())
    torch.testing.assert_close(*weights)
    assert weights[0] < 1.0


def test_copies_and_resets_inside_averaged():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    with opt.averaged():
        average = model.vector()
        other_model, other = copy.deepcopy((model, opt))
        with pytest.raises(RuntimeError, match=r"reset_history\(\) was called inside averaged"):
            opt.reset_history()
    assert torch.equal(other_model.vector(), average)
    assert not torch.equal(model.vector(), average)
    other.train()
    assert torch.equal(other_model.vector(), model.vector())
    run(other, other_model, problem, range(23, 26))
    assert other.stats.steps == 26


def test_history_loaded_into_a_narrower_dtype_is_consistent_with_itself():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    storage = StorageOptions(history_dtype=torch.bfloat16)
    narrow = quiet(Vector(model.vector()).parameters(), cycle_length=3, pairs=SMALL, storage=storage)
    narrow.load_state_dict(opt.state_dict())
    assert opt.stats.pairs == 4
    for s, y, sy in inside.state(narrow).pairs:
        torch.testing.assert_close(s.double() @ y.double(), sy, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("change", [{"steps": None}, {"curvature_size": 10**5}, {"step_multiplier": math.nan}])
def test_numbers_that_cannot_be_are_refused_before_anything_changes(change):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["lr"] = 99.0
    for entry in saved["state"].values():
        entry.update(change)
    with pytest.raises(ValueError, match=f"saved '{next(iter(change))}'"):
        opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == 0.05
    assert opt.stats.steps == 23


def test_a_shuffling_loader_does_not_disturb_the_random_state():
    model = nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    curvature = EmpiricalFisher(model, lambda out, t: (out - t).square()[:, 0], loader)
    opt = as_printed(model.parameters(), cycle_length=1, reject="none", pairs=PairOptions(curvature=curvature))
    state = torch.get_rng_state()
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        opt.step()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"scaling": 5}, TypeError),
        ({"scaling": Adagrad}, TypeError),
        ({"on_cycle": 5}, TypeError),
        ({"pairs": 5}, TypeError),
        ({"storage": torch.bfloat16}, TypeError),
        ({"storage": 0}, TypeError),
        ({"maximize": "yes"}, TypeError),
        ({"reject": 7}, TypeError),
        ({"lr": "fast"}, TypeError),
        ({"momentum": "0.9"}, TypeError),
    ],
    ids=str,
)
def test_options_of_the_wrong_kind(options, error):
    with pytest.raises(error, match=f"{next(iter(options))} must be"):
        as_printed([nn.Parameter(torch.ones(2))], **options)


@pytest.mark.parametrize("lr, limit", [(-0.1, "at least 0"), (math.nan, "at least 0"), (1e300, r"at most 3.4e\+38")])
def test_an_lr_set_later_that_no_step_can_go_by_is_one_error(lr, limit):
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w])
    opt.param_groups[0]["lr"] = lr
    w.grad = torch.ones(2)
    with pytest.raises(ValueError, match=f"lr must be {limit}, got {re.escape(str(lr))}"):
        opt.step()
    assert opt.stats.steps == 0
    assert not opt.state


def test_parameters_that_never_have_a_gradient_are_said_once():
    """As those from before fully_shard, which puts others in their place."""
    opt = AdaQN([torch.nn.Parameter(torch.ones(2))])
    for _ in range(9):
        opt.step()
    with pytest.warns(UserWarning, match="no parameter had a gradient in 10 steps in a row"):
        opt.step()
    for _ in range(30):
        opt.step()
