"""What a user of torch's own optimizers expects, and would not think of reading up."""

import copy
import inspect
import io
import re
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from adaqn import OLBFGS, RES, AdaQN, PairOptions, SdLBFGS
from adaqn.optim.family import Common
from inside import kept
from optim.table import OPTIMIZERS
from oracles import SMALL, NoisyValley, Vector, quiet, run, take_step, with_history

CLOSURE_METHODS = [OLBFGS, RES, SdLBFGS]
EVERY = pytest.mark.parametrize("info", OPTIMIZERS, ids=lambda info: info.name)


def through_a_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---------------------------------------------------------------------- state that others put there


@pytest.mark.parametrize("when", ["before the first step", "in mid-training"])
def test_what_others_put_into_the_state_is_saved_and_comes_back(when):
    """As torch.optim.Optimizer does: by parameter, and under keys of one's own."""
    problem = NoisyValley()
    model, resumed = Vector(problem.w0), Vector(problem.w0)
    opt, other = (quiet(m.parameters(), cycle_length=3, pairs=SMALL) for m in (model, resumed))
    w = model.pieces[1]
    if when == "in mid-training":
        run(opt, model, problem, range(10))
    opt.state[w]["ema"] = torch.arange(5.0)
    opt.state["epoch"] = 7
    if when != "in mid-training":
        run(opt, model, problem, range(10))
    assert torch.equal(opt.state[w]["ema"], torch.arange(5.0))
    saved = through_a_file(opt.state_dict())
    assert torch.equal(saved["state"][1]["ema"], torch.arange(5.0))
    assert saved["state"]["epoch"] == 7
    resumed.load_state_dict(model.state_dict())
    other.load_state_dict(saved)
    assert torch.equal(other.state[resumed.pieces[1]]["ema"], torch.arange(5.0))
    assert other.state["epoch"] == 7
    expected = run(opt, model, problem, range(10, 30))
    assert torch.equal(run(other, resumed, problem, range(10, 30)), expected)
    again = other.state_dict()["state"]
    assert torch.equal(again[1]["ema"], torch.arange(5.0))
    assert again["epoch"] == 7


@pytest.mark.parametrize("note", ["step", "momentum_mine", "pairs_seen", "window_size"])
def test_notes_with_names_like_ours_are_kept(note):
    """Also under a key of one's own, where every name is free, and before the first step."""
    problem = NoisyValley()
    model, resumed = Vector(problem.w0), Vector(problem.w0)
    opt, other = (quiet(m.parameters(), cycle_length=3, pairs=SMALL) for m in (model, resumed))
    opt.state[model.pieces[1]][note] = 5
    opt.state["log"] = {"steps": 3, "cycles": [1, 2], note: "mine"}
    for steps in (0, 7):
        if steps:
            run(opt, model, problem, range(steps))
        other.load_state_dict(through_a_file(opt.state_dict()))
        for held, m in ((opt, model), (other, resumed)):
            assert held.state[m.pieces[1]][note] == 5
            assert held.state["log"] == {"steps": 3, "cycles": [1, 2], note: "mine"}
        assert other.stats == opt.stats


def test_what_others_put_into_the_state_survives_a_copy():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    opt.state[model.pieces[0]]["mine"] = 3
    opt.state["shared"] = "kept"
    other_model, other = copy.deepcopy((model, opt))
    run(other, other_model, problem, range(23, 26))
    assert other.state[other_model.pieces[0]]["mine"] == 3
    assert other.state["shared"] == "kept"


def test_what_hooks_around_saving_add_comes_back():
    problem = NoisyValley()
    model, resumed = Vector(problem.w0), Vector(problem.w0)
    opt, other = (quiet(m.parameters(), cycle_length=3, pairs=SMALL) for m in (model, resumed))
    run(opt, model, problem, range(10))

    def add(optimizer):
        for p in model.parameters():
            optimizer.state[p]["norm"] = float(p.detach().norm())

    opt.register_state_dict_pre_hook(add)
    opt.register_state_dict_post_hook(lambda _, state_dict: {**state_dict, "note": "from a hook"})
    saved = through_a_file(opt.state_dict())
    assert saved["note"] == "from a hook"
    assert saved["state"][2]["norm"] == pytest.approx(float(model.pieces[2].detach().norm()))
    other.load_state_dict(saved)
    assert other.state[resumed.pieces[2]]["norm"] == saved["state"][2]["norm"]
    assert other.stats == opt.stats


def test_extra_values_of_a_group_are_saved():
    opt = quiet([{"params": [nn.Parameter(torch.ones(2))], "name": "head"}])
    assert opt.state_dict()["param_groups"][0]["name"] == "head"


# ---------------------------------------------------------------------- frozen parameters


def test_all_parameters_may_be_frozen_at_construction_and_one_warning_says_so():
    w = nn.Parameter(torch.ones(3), requires_grad=False)
    opt = quiet([w])
    with pytest.warns(UserWarning, match="requires a gradient|is frozen|are frozen"):
        opt.step()
    for _ in range(5):
        opt.step()
    assert opt.stats.steps == 0
    w.requires_grad_(True)
    w.grad = torch.ones(3)
    opt.step()
    assert (w.detach() < 1.0).all()


@pytest.mark.filterwarnings("ignore:the trainable parameters changed")
@pytest.mark.parametrize("scaling", ["adagrad", "kronecker"])
def test_a_frozen_parameter_with_a_gradient_is_stepped(scaling):
    """As torch's do: who sets .grad by hand means it."""
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2), requires_grad=False)
    reference = torch.optim.SGD([nn.Parameter(b.detach().clone(), requires_grad=False)], lr=0.1)
    opt = quiet([a, b], scaling=scaling)
    for p in (a, b, reference.param_groups[0]["params"][0]):
        p.grad = torch.full_like(p, 0.5)
    opt.step()
    reference.step()
    assert (reference.param_groups[0]["params"][0] < 1.0).all()
    assert (b < 1.0).all()
    assert torch.equal(a.detach(), b)


@pytest.mark.filterwarnings("ignore:the trainable parameters changed")
def test_all_frozen_later_with_gradients_set_by_hand_still_steps():
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w])
    w.grad = torch.ones(2)
    w.requires_grad_(False)
    opt.step()
    assert (w < 1.0).all()


# ---------------------------------------------------------------------- step() and its closure


@pytest.mark.parametrize("make", CLOSURE_METHODS)
def test_without_gradients_and_without_a_closure_a_step_is_nothing(make):
    model = Vector(torch.ones(12))
    opt = make(model.parameters())
    assert opt.step() is None
    assert opt.stats.steps == 0
    assert torch.equal(model.vector(), torch.ones(12))


@EVERY
def test_without_gradients_the_loss_of_the_closure_comes_back(info):
    model = Vector(torch.ones(12))
    opt = info(model.parameters())
    assert opt.step(lambda: 3.0) == 3.0
    assert opt.stats.steps == 0


# ---------------------------------------------------------------------- momentum in the groups


class Adam:
    """Adam's averaged gradient and H0 without pairs, with a β that changes from step to step."""

    def __init__(self, w, nesterov):
        self.w, self.nesterov = w.clone(), nesterov
        self.m, self.v, self.t = torch.zeros_like(w), torch.zeros_like(w), 0

    def step(self, g, lr, beta):
        self.t += 1
        self.m = beta * self.m + (1 - beta) * g
        self.v = 0.999 * self.v + 0.001 * g**2
        if self.nesterov:
            g = beta * self.m / (1 - beta ** (self.t + 1)) + (1 - beta) * g / (1 - beta**self.t)
        else:
            g = self.m / (1 - beta**self.t)
        self.w = self.w - lr * g / ((self.v / (1 - 0.999**self.t)).sqrt() + 1e-8)


CYCLING = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=40),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.05, step_size_up=10),
}


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", list(CYCLING))
def test_schedulers_with_their_defaults_cycle_the_momentum(name, nesterov):
    """The momentum of a step is that of the group, by Adam's formula with a β that changes."""
    problem = NoisyValley()
    model, expected = Vector(problem.w0), Adam(problem.w0, nesterov)
    opt = AdaQN(model.parameters(), preset="modern", nesterov=nesterov, warm_up=0, reject="none")
    scheduler, group, betas = CYCLING[name](opt), opt.param_groups[0], []
    for k in range(35):
        betas.append(float(group["momentum"]))
        g = problem.gradient(model.vector(), k)
        expected.step(g, group["lr"], group["momentum"])
        run(opt, model, problem, range(k, k + 1))
        scheduler.step()
        torch.testing.assert_close(model.vector(), expected.w, rtol=1e-9, atol=1e-9)
    assert max(betas) - min(betas) > 0.05
    assert opt.stats.stored == 0


def test_preset_modern_uses_the_momentum_of_the_group():
    """A group that is set to the preset's value by hand walks the preset's path."""
    problem = NoisyValley()
    paths = []
    for momentum in (None, 0.5):
        model = Vector(problem.w0)
        pairs = PairOptions(memory_size=3)
        opt = AdaQN(model.parameters(), preset="modern", lr=0.02, momentum=momentum, reject="none", pairs=pairs)
        opt.param_groups[0]["momentum"] = 0.9
        paths.append(run(opt, model, problem, range(40)))
        assert opt.stats.stored > 3
    assert torch.equal(*paths)


def test_groups_may_have_momenta_of_their_own():
    problem = NoisyValley()
    model, twins = Vector(problem.w0), [Vector(problem.w0), Vector(problem.w0)]
    first, *rest = model.parameters()
    options = {"scaling": "adam", "pairs": PairOptions(eps=1e9)}
    opt = quiet([{"params": [first], "momentum": 0.5}, {"params": rest}], momentum=0.9, **options)
    others = [quiet(m.parameters(), momentum=beta, **options) for m, beta in zip(twins, (0.5, 0.9), strict=True)]
    for k in range(20):
        for m in (model, *twins):
            m.set_gradient(problem.gradient(problem.w0, k))
        for o in (opt, *others):
            o.step()
    torch.testing.assert_close(model.pieces[0], twins[0].pieces[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model.vector()[1:], twins[1].vector()[1:], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(twins[0].vector(), twins[1].vector())


def test_momentum_that_a_scheduler_raises_from_nothing_is_saved_and_loaded():
    problem = NoisyValley()

    def made():
        model = Vector(problem.w0)
        return model, quiet(model.parameters(), scaling="adam", lr=0.02, momentum=0.0, cycle_length=3, pairs=SMALL)

    model, opt = made()
    run(opt, model, problem, range(7))
    assert "momentum" not in opt.state[model.pieces[0]]
    before = opt.state_size()
    opt.param_groups[0]["momentum"] = 0.9
    run(opt, model, problem, range(7, 16))
    assert kept(opt, "momentum").any()
    assert opt.state_size() == before + 8 * problem.n
    saved = through_a_file(opt.state_dict())
    resumed, other = made()
    resumed.load_state_dict(model.state_dict())
    other.load_state_dict(saved)
    assert other.param_groups[0]["momentum"] == 0.9
    assert torch.equal(kept(other, "momentum"), kept(opt, "momentum"))
    expected = run(opt, model, problem, range(16, 40))
    assert torch.equal(run(other, resumed, problem, range(16, 40)), expected)


def test_a_group_with_a_momentum_out_of_range_is_refused():
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\), got 1\.5"):
        quiet([{"params": [w], "momentum": 1.5}])


# ---------------------------------------------------------------------- lr as a tensor


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_lr_tensor_shared_by_two_groups_keeps_its_identity(shape):
    """Who changes it in place changes both; and equal step sizes are one step size."""
    problem = NoisyValley()
    model, plain = Vector(problem.w0), Vector(problem.w0)
    t = torch.full(shape, 0.05, dtype=torch.float64)
    first, *rest = model.parameters()
    opt = quiet([{"params": [first]}, {"params": rest}], lr=t)
    groups = opt.param_groups
    assert groups[0]["lr"] is groups[1]["lr"] is t
    other = quiet(plain.parameters(), lr=0.05)
    for k in range(20):
        if k == 10:
            t.mul_(0.5)
            other.param_groups[0]["lr"] = 0.025
        run(opt, model, problem, range(k, k + 1))
        run(other, plain, problem, range(k, k + 1))
    assert groups[0]["lr"] is groups[1]["lr"] is t
    torch.testing.assert_close(model.vector(), plain.vector(), rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- what warnings advise


@pytest.mark.parametrize("make", [OLBFGS, RES, AdaQN])  # SdLBFGS damps every pair until it can be stored
def test_the_warning_after_fifty_cycles_advises_only_what_the_class_has(make):
    """Gradients that never change give no curvature."""
    model = Vector(torch.zeros(12, dtype=torch.float64))
    options = {"reject": "none", "cycle_length": 1, "pairs": PairOptions(eps=1e9, damping=0)} if make is AdaQN else {}
    opt = make(model.parameters(), lr=1e-3, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(60):
            take_step(opt, lambda: model.set_gradient(torch.ones(12)))
    (message,) = (str(w.message) for w in caught)
    assert "50 cycles in a row stored no curvature pair" in message
    assert "opt.explain()" in message
    others = PairOptions.__dataclass_fields__ if make is AdaQN else Common.__annotations__
    assert set(re.findall(r"(\w+)=", message)) <= {*inspect.signature(make).parameters, *others}
    assert make is AdaQN or not re.search("PairOptions|monitor", message)


def test_momentum_of_the_groups_survives_a_state_that_does_not_know_it():
    """Groups of 0.1 had none."""
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = AdaQN([{"params": [a], "momentum": 0.5}, {"params": [b], "momentum": 0.7}], reject="none")
    a.grad, b.grad = torch.ones(2), torch.ones(2)
    opt.step()
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group["momentum"]
    opt.load_state_dict(saved)
    assert [group["momentum"] for group in opt.param_groups] == [0.5, 0.7]


def test_nothing_is_loaded_or_added_while_the_average_is_in_place():
    p = nn.Parameter(torch.ones(2))
    opt = AdaQN([p], reject="none", cycle_length=1)
    p.grad = torch.ones(2)
    opt.step()
    saved = opt.state_dict()
    with opt.averaged():
        with pytest.raises(RuntimeError, match=r"load_state_dict\(\) was called inside averaged\(\)"):
            opt.load_state_dict(saved)
        with pytest.raises(RuntimeError, match=r"add_param_group\(\) was called inside averaged\(\)"):
            opt.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_notes_of_others_come_back_also_where_they_begin_like_ours():
    p = nn.Parameter(torch.ones(2))
    opt = AdaQN([p], reject="none")
    p.grad = torch.ones(2)
    opt.step()
    opt.state[p].update({"curvature_note": 7.0, "scaling_note": 8.0, ("a", 1): 9.0})
    opt.load_state_dict(opt.state_dict())
    assert [opt.state[p][name] for name in ("curvature_note", "scaling_note", ("a", 1))] == [7.0, 8.0, 9.0]
