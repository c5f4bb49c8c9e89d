"""Checkpoints between steps resume bit for bit; what does not fit is refused in words; torch's hooks and schedulers."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import adaqn
import inside
from drawn import is_same
from fullbatch.problems import EVERY_SEARCH, network, plain, valley
from oracles import assert_same

LR = {None: 0.1}


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def groups_of(problem, several):
    a, *rest = problem.parameters()
    groups = [{"params": [a], "lr": 0.0}, {"params": rest[:1], "lr": 0.05}, {"params": rest[1:]}]
    return groups if several else problem.parameters()


def resumed_and_not(make, before=2, after=3, several=False, **options):
    """Run, save, load into another, and run both on: (the first, its path, the second, its path)."""
    a, b = make(), make()
    opt = adaqn.LBFGS(groups_of(a, several), **options)
    a.run(opt, before)
    other = adaqn.LBFGS(groups_of(b, several), **options)
    b.model.load_state_dict(saved_and_loaded(a.model.state_dict()))
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    assert_same(opt.state_dict()["state"], other.state_dict()["state"])
    return opt, a.run(opt, after), other, b.run(other, after)


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
@pytest.mark.parametrize("several", [False, True])
def test_a_run_resumes_bit_for_bit(search, scaling, several):
    options = {"line_search_fn": search, "scaling": scaling, "lr": LR.get(search, 1.0), "max_iter": 4}
    opt, path, other, again = resumed_and_not(network, several=several, history_size=5, **options)
    assert torch.equal(path, again)
    assert opt.stats == other.stats
    assert opt.stats.pairs > 0


def test_averages_that_overflowed_are_taken_over_as_they_are():
    """Those of gradients of 1e30 are no numbers in float32, which is not the same as not being there."""
    a, b = network().model.float(), network().model.float()
    opt, other = (adaqn.LBFGS(model.parameters(), scaling="kronecker", max_iter=2) for model in (a, b))

    def closure(factor):
        for p in a.parameters():
            p.grad = p.detach() * factor
        return sum(0.5 * p.detach().double().square().sum() for p in a.parameters())

    for factor in (1.0, 1e30, 1.0):
        opt.step(lambda factor=factor: closure(factor))
    averages = [t for entry in opt.state_dict()["state"].values() for n, t in entry.items() if n.endswith("_average")]
    assert any(t.isnan().any() for t in averages)
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    assert is_same(opt.state_dict()["state"], other.state_dict()["state"])


@pytest.mark.parametrize("search", ["hager_zhang", None])
@pytest.mark.parametrize("history", [None, torch.bfloat16])
@pytest.mark.parametrize("master", [False, True])
def test_so_does_one_in_low_precision(search, history, master):
    storage = adaqn.StorageOptions(history_dtype=history, master_weights=master)
    options = {"line_search_fn": search, "scaling": "adam", "lr": LR.get(search, 1.0), "max_iter": 4}
    _, path, _, again = resumed_and_not(
        lambda: network(dtype=torch.bfloat16), storage=storage, tolerance_change=0.0, **options
    )
    assert torch.equal(path, again)


@pytest.mark.parametrize("before", range(1, 9))
def test_at_every_turn_of_the_ring(before):
    _, path, _, again = resumed_and_not(
        valley, before=before, history_size=3, max_iter=1, max_eval=20, scaling="adam", tolerance_change=0.0
    )
    assert torch.equal(path, again)


X = torch.linspace(-1.0, 1.0, 20, dtype=torch.float64)[:, None]


def small_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def run(model, opt, steps):
    """On a loss that a copy of model and optimizer has as well."""

    def closure():
        opt.zero_grad()
        loss = (model(X) - torch.sin(3.0 * X)).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        opt.step(closure)
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("search", ["hager_zhang", None])
@pytest.mark.parametrize("scaling", ["adam", "kronecker"])
def test_a_copy_goes_its_own_way_and_the_same_way(copier, search, scaling):
    model = small_net()
    opt = adaqn.LBFGS(model.parameters(), line_search_fn=search, scaling=scaling, max_iter=4, lr=LR.get(search, 1.0))
    run(model, opt, 2)
    other_model, other = copier((model, opt))
    expected = run(model, opt, 3)
    assert torch.equal(run(other_model, other, 3), expected)
    assert other.stats == opt.stats
    assert torch.equal(inside.kept(other, "pairs_s"), inside.kept(opt, "pairs_s"))


# ---------------------------------------------------------------------- what does not fit


def trained(**options):
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), **{"scaling": "adam", "max_iter": 4, **options})
    problem.run(opt, 2)
    return problem, opt


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: adaqn.LBFGS(p, scaling="kronecker"), "saved by another method or with other options"),
        (lambda p: adaqn.LBFGS(p, scaling="adam", line_search_fn=None, max_iter=4), "missing .*pending_gradient"),
        (lambda p: adaqn.LBFGS(p, scaling="adam", history_size=7), "history_size that it was saved with"),
        (lambda p: adaqn.AdaQN(p, reject="none"), "."),
        (lambda p: adaqn.BFGS(p), "saved by another method or with other options"),
        (lambda p: adaqn.LBFGS(p[:-1], scaling="adam"), "of 4 parameters, and this optimizer has 3"),
        (
            lambda p: adaqn.LBFGS(p, scaling="adam", storage=adaqn.StorageOptions(master_weights=True)),
            "missing .*master",
        ),
    ],
    ids=["scaling", "search", "history_size", "adaqn", "bfgs", "parameters", "master"],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(make, words):
    _, opt = trained()
    problem = network(seed=1)
    other = make(problem.parameters())
    if not isinstance(other, adaqn.AdaQN):
        loss = problem.closure(other)
        other.step(loss)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises((ValueError, KeyError), match=words):
        other.load_state_dict(saved_and_loaded(opt.state_dict()))
    assert_same(before["state"], other.state_dict()["state"])
    assert before["param_groups"] == other.state_dict()["param_groups"]


def test_other_shapes_are_refused():
    _, opt = trained()
    other = adaqn.LBFGS([nn.Parameter(torch.ones(2, 2)) for _ in range(4)], scaling="adam")
    with pytest.raises(ValueError, match="has shape"):
        other.load_state_dict(opt.state_dict())
    assert other.stats.iterations == 0


@pytest.mark.parametrize("name", ["gamma", "noise", "n_iter", "pairs_size"])
def test_corrupt_numbers_are_refused(name):
    _, opt = trained()
    saved = saved_and_loaded(opt.state_dict())
    saved["state"][0][name] = float("nan")
    with pytest.raises(ValueError, match=f"saved '{name}' of parameter 0 is nan"):
        opt.load_state_dict(saved)


def test_another_dtype_is_converted():
    _, opt = trained()
    problem = network(dtype=torch.float32)
    other = adaqn.LBFGS(problem.parameters(), scaling="adam", max_iter=4)
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    assert inside.buffers(other)["pairs_s"].dtype == torch.float32
    assert other.stats.pairs == opt.stats.pairs
    problem.run(other, 2)


def test_the_state_of_torchs_lbfgs_is_refused_in_words():
    problem = network()
    theirs = torch.optim.LBFGS(problem.parameters())
    problem.run(theirs, 1)
    opt = plain(problem.parameters())
    with pytest.raises(ValueError, match=r"saved by torch.optim.LBFGS, whose memory has no H0"):
        opt.load_state_dict(theirs.state_dict())
    problem.run(opt, 1)


def test_what_others_keep_in_the_state_survives():
    problem, opt = trained()
    first = problem.parameters()[0]
    opt.state[first]["theirs"] = 5
    opt.state["whole"] = {"of": "them"}
    problem.run(opt, 1)
    assert opt.state[first]["theirs"] == 5
    twin = network()
    other = adaqn.LBFGS(twin.parameters(), scaling="adam", max_iter=4)
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    assert other.state[twin.parameters()[0]]["theirs"] == 5
    assert other.state["whole"] == {"of": "them"}
    twin.run(other, 1)
    assert other.state[twin.parameters()[0]]["theirs"] == 5


def test_a_state_before_the_first_step_is_a_state():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters())
    opt.load_state_dict(saved_and_loaded(opt.state_dict()))
    problem.run(opt, 1)
    assert opt.stats.iterations > 0


# ---------------------------------------------------------------------- torch's own machinery


def test_hooks_of_torch_are_called():
    problem, seen = network(), []
    opt = adaqn.LBFGS(problem.parameters(), max_iter=2, scaling="adam")
    opt.register_step_pre_hook(lambda *_: seen.append("pre"))
    opt.register_step_post_hook(lambda *_: seen.append("post"))
    opt.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    opt.register_load_state_dict_pre_hook(lambda _, state: seen.append("load") or state)
    opt.register_load_state_dict_post_hook(lambda _: seen.append("loaded"))
    problem.run(opt, 2)
    state = opt.state_dict()
    assert state["more"] == 1
    opt.load_state_dict(state)
    assert seen == ["pre", "post", "pre", "post", "load", "loaded"]


@pytest.mark.parametrize("search", EVERY_SEARCH)
def test_schedulers_set_the_first_length(search):
    problem = network()
    opt = plain(problem.parameters(), line_search_fn=search, lr=0.5, max_iter=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    before = problem.loss().item()
    for _ in range(4):
        opt.step(problem.closure(opt))
        scheduler.step()
    assert opt.param_groups[0]["lr"] == 0.5**5
    assert problem.loss().item() < before
    if search is None:
        assert opt.last_iteration.length == 0.5**4


def test_callers_find_the_numbers_where_torch_has_them():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters())
    opt.step(problem.closure(opt))
    state = opt.state[opt._params[0]]
    assert (state["n_iter"], state["func_evals"]) == (opt.stats.iterations, problem.calls)
    assert opt.state_dict()["state"][0]["func_evals"] == problem.calls
