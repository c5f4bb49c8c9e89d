"""Param groups, signs, dtypes, complex, frozen and changing parameters."""

import pytest
import torch
from torch import nn

import adaqn
import inside
from fullbatch.problems import EVERY_SEARCH, Problem, convex, network, plain, valley
from oracles import relative_error

LR = {None: 0.1}


# ---------------------------------------------------------------------- groups


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
def test_a_group_with_lr_zero_does_not_move(search, scaling):
    problem = valley()
    a, *rest = problem.parameters()
    lr = LR.get(search, 1.0) if scaling != "kronecker" else 1.0
    groups = [{"params": [a], "lr": 0.0}, {"params": rest}]
    opt = adaqn.LBFGS(groups, lr=lr, line_search_fn=search, scaling=scaling, max_iter=5)
    before, others = a.detach().clone(), rest[1].detach().clone()
    problem.run(opt, 3)
    assert torch.equal(a.detach(), before)
    assert not torch.equal(rest[1].detach(), others)
    assert opt.stats.pairs > 0


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("scaling", ["identity", "adam"])
def test_nor_does_one_whose_lr_becomes_zero_when_pairs_are_stored(search, scaling):
    problem = valley()
    a, *rest = problem.parameters()
    opt = adaqn.LBFGS(
        [{"params": [a]}, {"params": rest}], lr=LR.get(search, 1.0), line_search_fn=search, scaling=scaling, max_iter=4
    )
    problem.run(opt, 2)
    assert opt.stats.pairs > 0
    before = a.detach().clone()
    opt.param_groups[0]["lr"] = 0.0
    problem.run(opt, 3)
    assert torch.equal(a.detach(), before)
    assert opt.stats.pairs > 0
    opt.param_groups[0]["lr"] = opt.param_groups[1]["lr"]
    problem.run(opt, 2)
    assert not torch.equal(a.detach(), before)


def test_a_full_matrix_follows_a_step_size_to_zero_and_back():
    problem = valley()
    a, *rest = problem.parameters()
    opt = adaqn.BFGS([{"params": [a]}, {"params": rest}], max_iter=4)
    problem.run(opt, 2)
    for lr in (0.0, 1.0, 0.0):
        before = a.detach().clone()
        opt.param_groups[0]["lr"] = lr
        problem.run(opt, 2)
        assert torch.equal(a.detach(), before) is (lr == 0.0)


def test_a_tensor_as_lr_is_the_number_it_holds():
    a, b = network(), network()
    expected = a.run(plain(a.parameters(), lr=0.25, line_search_fn=None), 2)
    assert torch.equal(b.run(plain(b.parameters(), lr=torch.tensor(0.25), line_search_fn=None), 2), expected)


def test_groups_of_one_step_size_are_one_group():
    a, b = network(), network()
    one = adaqn.LBFGS(a.parameters(), max_iter=5)
    two = adaqn.LBFGS([{"params": b.parameters()[:2]}, {"params": b.parameters()[2:], "lr": 1.0}], max_iter=5)
    assert torch.equal(a.run(one, 3), b.run(two, 3))
    assert one.stats == two.stats


def test_what_one_search_decides_is_not_for_a_group():
    p, q = convex().parameters(), valley().parameters()
    with pytest.raises(ValueError, match="max_iter in a param group: one search moves all parameters"):
        adaqn.LBFGS([{"params": p, "max_iter": 3}, {"params": q}])
    opt = adaqn.LBFGS([{"params": p}, {"params": q}])
    opt.param_groups[1]["tolerance_grad"] = 1.0
    with pytest.raises(ValueError, match=r"tolerance_grad is 1e-07 in one param group and 1.0 in another"):
        opt.step(lambda: 1.0)
    opt = adaqn.LBFGS(p)
    opt.param_groups[0]["history_size"] = 7
    with pytest.raises(ValueError, match="history_size is 7 in the param groups"):
        opt.step(lambda: 1.0)


def test_the_search_can_be_changed_in_the_group_as_in_torch():
    a, b = network(), network()
    opt = plain(a.parameters(), line_search_fn="strong_wolfe", max_iter=5)
    expected = a.run(opt, 3)
    changed = plain(b.parameters(), line_search_fn="backtracking", max_iter=5)
    changed.param_groups[0]["line_search_fn"] = "strong_wolfe"
    assert torch.equal(b.run(changed, 3), expected)
    for name in (None, "wolf"):
        changed.param_groups[0]["line_search_fn"] = name
        with pytest.raises(ValueError, match=f"line_search_fn is {name!r} in the param groups"):
            b.run(changed, 1)


# ---------------------------------------------------------------------- signs and dtypes


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("scaling", ["identity", "adam"])
def test_maximize_mirrors_minimize(search, scaling):
    down, up, events = network(), network(), []
    up.loss = lambda loss=up.loss: -loss()
    options = {"line_search_fn": search, "scaling": scaling, "lr": LR.get(search, 1.0), "max_iter": 6}
    a = adaqn.LBFGS(down.parameters(), **options)
    b = adaqn.LBFGS(up.parameters(), maximize=True, on_cycle=events.append, **options)
    assert torch.equal(down.run(a, 3), up.run(b, 3))
    assert a.stats.evaluations == b.stats.evaluations
    if search is not None:
        assert b.stats.loss == -a.stats.loss == up.loss().item() == events[-1].loss
        assert events[-1].loss > events[0].previous_loss
    assert f"to {events[-1].loss:.3g}"[:6] in str(b.explain())


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
def test_a_complex_parameter_is_a_pair_of_reals(search, scaling):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(4, 3, 2, dtype=torch.float64, generator=generator)
    z, x = nn.Parameter(torch.view_as_complex(start.clone())), nn.Parameter(start.clone())
    target = torch.randn(4, 3, dtype=torch.complex128, generator=generator)

    def loss(w):
        return (w - target).abs().pow(4).sum() + w.abs().square().sum()

    a = Problem(nn.ParameterList([z]), lambda: loss(z))
    b = Problem(nn.ParameterList([x]), lambda: loss(torch.view_as_complex(x)))
    options = {"line_search_fn": search, "scaling": scaling, "lr": LR.get(search, 1.0), "max_iter": 5}
    if search is None and scaling == "kronecker":
        options["max_iter"] = 1
    expected = b.run(adaqn.LBFGS([x], **options), 2)
    assert relative_error(a.run(adaqn.LBFGS([z], **options), 2), expected) < 1e-6


@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("history", [None, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scaling", ["identity", "kronecker"])
def test_bfloat16_weights_have_a_wide_history(master, history, scaling):
    problem = network(dtype=torch.bfloat16)
    storage = adaqn.StorageOptions(history_dtype=history, master_weights=master)
    opt = adaqn.LBFGS(problem.parameters(), storage=storage, scaling=scaling, max_iter=10, tolerance_change=0.0)
    before = problem.loss().item()
    problem.run(opt, 3)
    assert problem.loss().item() < before
    buffers = inside.buffers(opt)
    assert buffers["pairs_s"].dtype == (history or torch.float32)
    assert ("master" in buffers) is master
    assert all(p.dtype == torch.bfloat16 for p in problem.parameters())
    if master:
        assert buffers["master"].dtype == torch.float32
        assert torch.equal(buffers["master"].bfloat16().double(), problem.vector())


@pytest.mark.parametrize("master", [False, True])
def test_wide_copies_go_where_rounded_weights_cannot(master):
    """Steps below the spacing of bfloat16 add up in the wide copies, and there alone."""
    w = nn.Parameter(torch.full((4,), 100.0, dtype=torch.bfloat16))
    options = {"scaling": "identity", "line_search_fn": None, "lr": 0.01, "max_iter": 5, "tolerance_change": 0.0}
    opt = adaqn.LBFGS([w], storage=adaqn.StorageOptions(master_weights=master), **options)

    def closure():
        opt.zero_grad()
        loss = (0.5 * (w.float() - 90.0).square()).sum()
        loss.backward()
        return loss

    for _ in range(30):
        opt.step(closure)
    assert bool((w.detach() < 100.0).all()) is master


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32, torch.complex64)])
def test_parameters_of_several_dtypes(dtypes):
    params = [nn.Parameter(torch.full((3,), 0.5).to(dtype)) for dtype in dtypes]
    problem = Problem(nn.ParameterList(params), lambda: sum((p.abs() - 1).square().sum().double() for p in params))
    opt = adaqn.LBFGS(params, max_iter=15)
    before = problem.loss().item()
    problem.run(opt, 2)
    assert problem.loss().item() < 0.1 * before
    assert [p.dtype for p in params] == list(dtypes)


# ---------------------------------------------------------------------- which parameters


def test_frozen_parameters_stay_and_cost_nothing():
    problem = network()
    problem.model[0].requires_grad_(False)
    opt = adaqn.LBFGS(problem.parameters())
    before = problem.model[0].weight.detach().clone()
    problem.run(opt, 2)
    assert torch.equal(problem.model[0].weight.detach(), before)
    assert inside.buffers(opt)["pairs_s"].shape[1] == 7
    first = problem.parameters()[0]
    assert opt.state[first] == {"n_iter": opt.stats.iterations, "func_evals": opt.stats.evaluations}


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_parameters_may_join_and_leave_in_mid_training(search):
    problem = network()
    problem.model[0].requires_grad_(False)
    opt = adaqn.LBFGS(problem.parameters(), line_search_fn=search, scaling="adam", max_iter=5, lr=LR.get(search, 1.0))
    problem.run(opt, 2)
    iterations = opt.stats.iterations
    problem.model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match="from 2 tensors to 4.*the curvature history restarts"):
        problem.run(opt, 1)
    assert opt.stats.iterations > iterations
    problem.run(opt, 2)
    problem.model[2].requires_grad_(False)
    before = problem.model[2].weight.detach().clone()
    opt.zero_grad()
    with pytest.warns(UserWarning, match="from 4 tensors to 2"):
        problem.run(opt, 1)
    assert torch.equal(problem.model[2].weight.detach(), before)
    loss = problem.loss().item()
    problem.run(opt, 2)
    assert problem.loss().item() <= loss


def test_a_group_may_join_in_mid_training():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters()[:2], scaling="adam", max_iter=5)
    problem.run(opt, 2)
    seen = opt.state[problem.parameters()[0]]["scaling_square_avg"].clone()
    opt.add_param_group({"params": problem.parameters()[2:], "lr": 0.5})
    with pytest.warns(UserWarning, match="H0 keeps what it knows"):
        opt.step(problem.closure(opt))
    assert seen.abs().sum() > 0
    assert opt.stats.pairs > 0
    with pytest.raises(ValueError, match="max_eval in a param group"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(1))], "max_eval": 3})
    assert len(opt.param_groups) == 2


def test_weights_changed_from_outside_begin_a_new_history():
    problem = network()
    opt = plain(problem.parameters(), max_iter=5)
    problem.run(opt, 2)
    with torch.no_grad():
        for p in problem.parameters():
            p.mul_(0.5)
    opt.reset_history()
    assert opt.stats.pairs == 0
    problem.run(opt, 2)
    assert opt.stats.noise == 0.0
    assert opt.stats.pairs > 0
