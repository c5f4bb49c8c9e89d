"""With H0 = γI adaqn.LBFGS is torch.optim.LBFGS: the same iterates, the same numbers, the same ends."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adaqn
from adaqn.core.line_search import Found
from fullbatch.problems import PROBLEMS, convex, network, plain, rosenbrock, valley
from oracles import relative_error


def both(make, steps, **options):
    """(Ours, torch's, the weights after each step of ours, of torch's)."""
    a, b = make(), make()
    ours, theirs = plain(a.parameters(), **options), torch.optim.LBFGS(b.parameters(), **options)
    return ours, theirs, a.run(ours, steps), b.run(theirs, steps), (a, b)


def totals(opt):
    entry = opt.state_dict()["state"][0]
    return entry["n_iter"], entry["func_evals"]


@pytest.mark.parametrize("search", ["strong_wolfe", None])
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 4},
        {"max_iter": 7, "history_size": 3},
        {"max_iter": 5, "lr": 0.3},
        {"max_iter": 3, "history_size": 1, "lr": 0.5},
    ],
    ids=str,
)
def test_the_iterates_are_torchs(name, search, options):
    options = {"max_eval": 1000, "lr": 1.0 if search else 0.1, "line_search_fn": search} | options
    ours, theirs, path, expected, (a, b) = both(PROBLEMS[name], 5, **options)
    assert relative_error(path, expected) < 1e-6
    assert totals(ours) == totals(theirs)
    assert a.calls == b.calls


@given(seed=st.integers(0, 10_000), size=st.integers(1, 8), lr=st.sampled_from([0.3, 1.0, 2.0]))
def test_the_iterates_are_torchs_on_random_problems(seed, size, lr):
    options = {"max_iter": 5, "max_eval": 1000, "history_size": size, "lr": lr, "line_search_fn": "strong_wolfe"}
    ours, theirs, path, expected, _ = both(lambda: valley(8, seed), 3, **options)
    assert relative_error(path, expected) < 1e-5
    assert totals(ours) == totals(theirs)


@pytest.mark.parametrize("seed", range(5))
def test_on_a_convex_problem_both_arrive(seed):
    options = {"max_iter": 200, "line_search_fn": "strong_wolfe", "tolerance_change": 1e-14}
    _, _, path, expected, _ = both(lambda: convex(seed=seed), 1, **options)
    assert relative_error(path, expected) < 1e-6


def test_rosenbrocks_valley_is_walked_along_the_same_way():
    ours, theirs, path, expected, _ = both(rosenbrock, 25, max_iter=1, max_eval=40, line_search_fn="strong_wolfe")
    assert relative_error(path, expected) < 1e-6
    assert totals(ours) == totals(theirs)


@pytest.mark.parametrize("max_iter", [1, 2, 3])
def test_short_steps_without_a_search_are_torchs(max_iter):
    """torch's default budget is max_iter there: it moves, and so do we."""
    options = {"max_iter": max_iter, "max_eval": max_iter, "lr": 0.2, "line_search_fn": None}
    ours, theirs, path, expected, _ = both(convex, 12, **options)
    assert relative_error(path, expected) < 1e-9
    assert totals(ours) == totals(theirs)


@pytest.mark.parametrize("search", ["strong_wolfe", "hager_zhang", "backtracking", None])
def test_one_iteration_a_step_makes_progress_by_default(search):
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), max_iter=1, line_search_fn=search, lr=1.0 if search else 0.1)
    before = problem.loss().item()
    problem.run(opt, 40)
    assert problem.loss().item() < 0.5 * before


def test_arguments_that_torch_has_are_torchs_but_for_the_search():
    theirs = inspect.signature(torch.optim.LBFGS.__init__).parameters
    ours = inspect.signature(adaqn.LBFGS.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    differ = [name for name in theirs if name != "self" and ours[name].default != theirs[name].default]
    assert differ == ["line_search_fn"]
    p = [torch.nn.Parameter(torch.ones(2))]
    for options in ({}, {"max_iter": 40}, {"max_iter": 3, "max_eval": 3}):
        groups = plain(p, **options).param_groups[0], torch.optim.LBFGS(p, **options).param_groups[0]
        assert {k: v for k, v in groups[0].items() if k != "line_search_fn"} == {
            k: v for k, v in groups[1].items() if k != "line_search_fn"
        }


@pytest.mark.parametrize("search", ["strong_wolfe", "hager_zhang", "backtracking", None])
def test_step_returns_the_first_loss_with_its_graph_untouched(search):
    problem = network()
    opt = plain(problem.parameters(), line_search_fn=search, lr=0.1)
    expected = problem.loss()
    seen = []

    def closure():
        assert torch.is_grad_enabled()
        loss = problem.closure(opt)()
        seen.append(loss)
        return loss

    with torch.no_grad():
        returned = opt.step(closure)
    assert returned is seen[0]
    assert float(returned.detach()) == float(expected.detach())
    assert len(seen) > 2
    assert isinstance(opt.step(lambda: closure().item()), float)


# ---------------------------------------------------------------------- how a step ends


ENDS = [
    ({"tolerance_grad": 1e9}, "the gradient is within tolerance_grad"),
    ({"tolerance_grad": 1e-2, "tolerance_change": 0.0, "max_iter": 100}, "the gradient is within tolerance_grad"),
    ({"tolerance_change": 1e9}, "the slope is within tolerance_change"),
    ({"max_iter": 2}, "max_iter iterations were made"),
    ({"max_eval": 4, "tolerance_change": 0.0}, "the budget of evaluations (max_eval) is spent"),
]


@pytest.mark.parametrize(("options", "reason"), ENDS, ids=str)
@pytest.mark.parametrize("search", ["strong_wolfe", "hager_zhang", "backtracking", None])
def test_every_end_of_a_step_says_why(options, reason, search):
    problem = convex()
    opt = plain(problem.parameters(), **{"line_search_fn": search, "lr": 1.0 if search else 0.3, **options})
    opt.step(problem.closure(opt))
    assert opt.stats.reason == reason
    assert f"ended because {reason}" in str(opt.explain())


@pytest.mark.parametrize("search", ["strong_wolfe", None])
def test_a_step_ends_where_the_loss_changes_too_little(search):
    w = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    losses = iter([1.0, 1.0 - 1e-12, 0.5])

    def closure():
        w.grad = torch.ones_like(w)
        return next(losses)

    opt = plain([w], line_search_fn=None if search is None else lambda line, start, first, **_: take(line, first))
    opt.step(closure)
    assert opt.stats.reason == "the loss changed by less than tolerance_change"
    assert opt.stats.iterations == 1


def take(line, t):
    return Found(line(t), True, "as it is", 1)


def test_a_step_ends_where_the_weights_move_too_little():
    w = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    losses = iter([3.0, 2.0, 1.0])

    def closure():
        w.grad = 1e6 * torch.ones_like(w)
        return next(losses)

    opt = plain([w], line_search_fn=None, lr=1e-12, tolerance_change=1e-9)
    opt.step(closure)
    assert opt.stats.reason == "the weights moved by at most tolerance_change"
    assert opt.stats.iterations == 1


@pytest.mark.parametrize("name", ["tolerance_grad", "tolerance_change"])
def test_tolerances_may_be_switched_off_and_are_numbers(name):
    problem = convex()
    opt = plain(problem.parameters(), **{name: -float("inf")}, max_iter=3)
    opt.step(problem.closure(opt))
    assert opt.stats.iterations == 3
    with pytest.raises(ValueError, match=f"{name} must be a number, got nan"):
        plain(problem.parameters(), **{name: float("nan")})
    with pytest.raises(TypeError, match=f"{name} must be a number, got 'small'"):
        plain(problem.parameters(), **{name: "small"})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lr": -1.0}, ValueError, "lr must be a finite number of at least 0, got -1.0"),
        ({"lr": torch.ones(2)}, ValueError, "Tensor lr must be 1-element"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1, got 0"),
        ({"max_iter": 2.5}, TypeError, "max_iter must be a whole number, got 2.5"),
        ({"max_eval": 0}, ValueError, "max_eval must be at least 1, got 0"),
        ({"history_size": 0}, ValueError, "history_size must be at least 1"),
        ({"line_search_fn": "wolf"}, ValueError, "line_search_fn must be one of"),
        ({"scaling": "soap"}, ValueError, "scaling must be one of"),
        ({"damping": 2.0}, ValueError, "damping must lie in"),
        ({"noise": -1.0}, ValueError, "noise must be a finite number of at least 0, got -1.0"),
        ({"noise": "some"}, ValueError, "noise must be one of"),
        ({"maximize": 1}, TypeError, "maximize must be True or False, got 1"),
        ({"storage": "small"}, TypeError, "storage must be an adaqn.StorageOptions"),
        ({"storage": adaqn.StorageOptions(fisher_dtype=torch.bfloat16)}, ValueError, "fisher_dtype in storage"),
        ({"on_cycle": 3}, TypeError, "on_cycle"),
        ({"process_group": "all"}, TypeError, "process_group must be"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_in_words(options, error, words):
    with pytest.raises(error, match=words):
        adaqn.LBFGS([torch.nn.Parameter(torch.ones(2))], **options)
