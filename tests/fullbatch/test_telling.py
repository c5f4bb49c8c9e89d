"""What the optimizer tells: an event for each iteration, totals, findings, and its size."""

import gc
import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import adaqn
import inside
from adaqn.core.outcome import Outcome
from adaqn.explain.fullbatch import WholeRecord, explain_whole, whole_record_of
from fullbatch.problems import EVERY_SEARCH, SEARCHES, Problem, network, plain, rosenbrock, valley
from fullbatch.test_not_finite import spoilt, uphill


def topics(opt):
    return [finding.name for finding in opt.explain().findings]


@pytest.mark.parametrize("search", SEARCHES)
def test_an_event_for_each_iteration_and_their_losses_make_a_chain(search):
    problem, events, more = network(), [], []
    opt = plain(problem.parameters(), line_search_fn=search, max_iter=5, on_cycle=[events.append, more.append])
    first = problem.loss().item()
    problem.run(opt, 3)
    assert events == more
    assert [event.step for event in events] == list(range(1, opt.stats.iterations + 1))
    assert events[0].previous_loss == first
    assert [event.previous_loss for event in events[1:]] == [event.loss for event in events[:-1]]
    assert events[-1].loss == opt.stats.loss == problem.loss().item()
    assert events[-1] == opt.last_iteration
    assert events[-1].evaluations == opt.stats.evaluations == problem.calls
    assert sum(event.trials for event in events) + 3 == problem.calls  # one more at the beginning of each step
    assert all(event.loss < event.previous_loss and event.length > 0 and event.search for event in events)
    assert sum(event.outcome is Outcome.STORED for event in events) == opt.stats.stored
    assert events[-1].pairs == opt.stats.pairs
    assert abs(events[-1].gradient - float(problem.gradient().abs().max())) < 1e-12
    numbers = events[-1].as_dict()
    assert numbers["stored"] + numbers["skipped"] + numbers["rejected"] == 1.0
    assert all(isinstance(value, float) for value in numbers.values())


def test_without_a_search_the_last_pair_of_a_step_waits():
    problem, events = network(), []
    opt = plain(problem.parameters(), line_search_fn=None, lr=0.1, max_iter=3, on_cycle=events.append)
    problem.run(opt, 2)
    assert [event.trials for event in events] == [1, 1, 0, 1, 1, 0]
    assert opt.stats.loss is None  # nobody knows it yet
    assert problem.calls == opt.stats.evaluations == 6
    assert opt.stats.stored == 5


def test_totals_before_the_first_step_and_after_loading():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), scaling="adam")
    assert opt.stats.reason == "no step was made yet"
    assert (opt.stats.iterations, opt.stats.loss, opt.last_iteration) == (0, None, None)
    assert "no step was made yet" in str(opt.explain())
    problem.run(opt, 1)
    totals = opt.stats
    opt.load_state_dict(opt.state_dict())
    assert opt.stats.reason == "a state was loaded"
    assert opt.stats.iterations == totals.iterations
    assert opt.last_iteration is None
    str(opt.explain())


def test_an_error_in_a_callback_comes_through_and_leaves_a_working_optimizer():
    problem = network()

    def fail(event):
        if event.step == 3:
            raise ZeroDivisionError("in the callback")

    opt = plain(problem.parameters(), on_cycle=fail, max_iter=5)
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        opt.step(problem.closure(opt))
    assert opt.stats.iterations == 3
    assert opt.stats.evaluations == problem.calls
    assert "ZeroDivisionError" in opt.stats.reason
    problem.run(opt, 2)
    assert opt.stats.noise == 0.0
    assert opt.stats.iterations == 13


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("search", SEARCHES)
def test_totals_are_those_of_now_in_the_middle_of_a_step(search, maximize):
    problem, seen = network(), []
    minimised = problem.loss
    problem.loss = (lambda: -minimised()) if maximize else minimised
    first = problem.parameters()[0]

    def look(event):
        assert opt.stats.evaluations == event.evaluations == problem.calls
        assert opt.state[first]["func_evals"] == problem.calls
        assert opt.stats.loss == event.loss == problem.loss().item()
        seen.append(opt.stats.iterations)

    opt = plain(problem.parameters(), line_search_fn=search, max_iter=4, maximize=maximize, on_cycle=look)
    problem.run(opt, 2)
    assert seen == list(range(1, 9))
    assert opt.stats.evaluations == opt.state[first]["func_evals"] == problem.calls


def test_a_state_is_not_saved_in_the_middle_of_a_step():
    problem = network()
    opt = plain(problem.parameters(), on_cycle=lambda event: opt.state_dict())
    with pytest.raises(RuntimeError, match="inside on_cycle, where a step is not finished: call it between two steps"):
        opt.step(problem.closure(opt))
    opt.state_dict()


# ---------------------------------------------------------------------- findings, each provoked once


def test_a_run_without_trouble_has_no_findings():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), max_iter=10)
    problem.run(opt, 2)
    assert topics(opt) == []
    said = str(opt.explain())
    assert f"LBFGS on KroneckerSecant: {opt.stats.iterations} iterations, {problem.calls} evaluations" in said
    assert f"loss in the last {opt.stats.iterations} iterations" in said


def test_finding_stopped_and_restarts():
    problem = valley()
    opt = plain(problem.parameters(), max_iter=4, max_eval=200)
    problem.run(opt, 1)
    opt.step(uphill(problem, opt))
    assert {"stopped", "restarts"} <= set(topics(opt))


def test_finding_not_finite():
    problem = network()
    opt = plain(problem.parameters(), max_iter=6, max_eval=60)
    opt.step(spoilt(problem, opt, when=lambda calls: calls == 2))
    assert "not finite" in topics(opt)


def test_finding_trials():
    problem = rosenbrock()
    opt = plain(problem.parameters(), lr=1e-4, max_iter=12, max_eval=500, line_search_fn="strong_wolfe")
    problem.run(opt, 1)
    assert "trials" in topics(opt)


def test_finding_skips():
    """Where the curvature is negative, and nobody looks at the slope behind a step."""
    w = nn.Parameter(torch.full((3,), 0.01, dtype=torch.float64))
    problem = Problem(nn.ParameterList([w]), lambda: -w.square().sum())
    opt = plain([w], line_search_fn=None, lr=0.01, max_iter=12)
    problem.run(opt, 1)
    assert opt.stats.skipped >= 11
    assert "skips" in topics(opt)


def test_a_step_that_found_no_lower_loss_has_not_spent_its_budget():
    problem = valley()
    opt = plain(problem.parameters(), max_iter=4, max_eval=3)
    for _ in range(4):
        opt.step(uphill(problem, opt))
    assert opt.stats.idle > 1
    assert "idle" in topics(opt)
    opt.param_groups[0]["max_eval"] = 500
    opt.step(uphill(problem, opt))
    assert "no lower loss" in opt.stats.reason
    assert opt.stats.idle == 0
    assert "stopped" in topics(opt)
    assert "idle" not in topics(opt)


@pytest.mark.parametrize("search", SEARCHES)
def test_finding_no_room(search):
    problem = network()
    opt = plain(problem.parameters(), max_eval=1, line_search_fn=search)
    assert topics(opt) == []
    problem.run(opt, 3)
    assert opt.stats.iterations == 0
    assert "no room" in topics(opt)
    assert "no step is possible: max_eval=1" in str(opt.explain())
    assert "for max_iter=20 it is 25 by default" in str(opt.explain())


def test_one_evaluation_moves_weights_where_nothing_is_searched_for():
    problem = network()
    opt = plain(problem.parameters(), max_eval=1, line_search_fn=None, lr=0.01)
    problem.run(opt, 3)
    assert "no room" not in topics(opt)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_in_use_is_not_advised(search, dtype):
    problem = valley(dtype=dtype)
    opt = plain(problem.parameters(), max_iter=4, max_eval=200, line_search_fn=search, noise=0.0)
    problem.run(opt, 1)
    opt.step(uphill(problem, opt))
    said = {finding.name: finding.change for finding in opt.explain().findings}
    assert ("line_search_fn='hager_zhang'" in said["restarts"]) == (search != "hager_zhang")
    assert ("float64" in said["restarts"]) == ("float64" in said["stopped"]) == (dtype != torch.float64)


def test_one_is_no_plural():
    problem = valley()
    opt = plain(problem.parameters(), max_iter=1)
    record = whole_record_of(opt)
    stats = replace(record.stats, steps=1, iterations=1, restarts=1, nonfinite=1, stored=1, evaluations=1)
    said = str(explain_whole(replace(record, stats=stats)))
    for words in ("1 search failed in 1 iteration,", "1 pair stored", "1 evaluation gave"):
        assert words in said
    assert re.search(r"\b1 \w+s\b", said) is None


def test_a_record_comes_back_from_json():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), max_iter=12)
    problem.run(opt, 1)
    record = whole_record_of(opt)
    record = replace(record, recent=(*record.recent, replace(record.recent[0], loss=float("inf"))))
    assert WholeRecord.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False))) == record
    with pytest.raises(ValueError, match="not the record of an optimizer"):
        WholeRecord.from_json({"recent": 3})


def test_finding_noise_names_dropout():
    torch.manual_seed(0)
    x = torch.linspace(-1.0, 1.0, 50)[:, None]
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Dropout(0.3), nn.Linear(20, 1))
    problem = Problem(model, lambda: (model(x) - x.sin()).square().mean())
    opt = adaqn.LBFGS(model.parameters())
    problem.run(opt, 5)
    assert "a different function in every call (dropout" in str(opt.explain())


def test_a_loss_that_was_told_to_be_another_has_no_noise():
    problem, factor = network(), 1.0
    usual = problem.loss
    problem.loss = lambda: factor * usual()
    opt = adaqn.LBFGS(problem.parameters(), max_iter=3)
    for _ in range(3):
        factor *= 1.5
        problem.run(opt, 1)
    assert opt.stats.noise > 0.0
    assert "if you changed the loss between steps" in str(opt.explain())
    opt.reset_history()
    assert opt.stats.noise == 0.0
    problem.run(opt, 1)
    assert "noise" not in topics(opt)


@pytest.mark.parametrize(
    ("spread", "advice"), [(1e-4, "reset_history"), (0.5, "AdaQN or SOAP may be the better choice")]
)
def test_finding_noise_has_two_pieces_of_advice(spread, advice):
    w = nn.Parameter(torch.ones(3, dtype=torch.float64))
    factors = iter(1.0 + spread * torch.rand(5, dtype=torch.float64))
    opt = plain([w], max_iter=1, max_eval=10, tolerance_change=0.0, tolerance_grad=0.0)
    for factor in factors:

        def closure(factor=factor):
            opt.zero_grad()
            loss = 1.0 + (w - 2.0).square().sum()
            loss.backward()
            return loss.detach() * factor

        opt.step(closure)
    assert "noise" in topics(opt)
    assert advice in str(opt.explain())


# ---------------------------------------------------------------------- its size


@pytest.mark.parametrize("search", EVERY_SEARCH)
@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("storage", [None, adaqn.StorageOptions(history_dtype=torch.bfloat16, master_weights=True)])
def test_the_size_of_the_state_is_what_is_held_and_the_work_space(search, scaling, dtype, storage):
    problem = network(dtype=dtype)
    opt = adaqn.LBFGS(
        problem.parameters(),
        line_search_fn=search,
        scaling=scaling,
        storage=storage,
        history_size=6,
        lr=0.1,
        max_iter=1,
    )
    announced = opt.state_size()
    problem.run(opt, 1)
    held = sum(t.numel() * t.element_size() for t in inside.held(opt))
    work = 8 * 31 * (8 if dtype == torch.float64 else 4)
    assert announced == opt.state_size() == held + work


def test_frozen_parameters_have_no_size():
    problem = network()
    whole = adaqn.LBFGS(problem.parameters()).state_size()
    problem.model[0].requires_grad_(False)
    assert 0 < adaqn.LBFGS(problem.parameters()).state_size() < whole
    problem.model.requires_grad_(False)
    assert adaqn.LBFGS(problem.parameters()).state_size() == 0


def test_memory_stays_flat_and_no_graph_is_kept():
    problem = network()
    opt = adaqn.LBFGS(problem.parameters(), scaling="adam", max_iter=3, history_size=4, tolerance_change=0.0)

    def alive():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    problem.run(opt, 5)
    before = alive()
    problem.run(opt, 20)
    assert alive() <= before
    assert all(t.grad_fn is None and not t.requires_grad for t in inside.buffers(opt).values())


class Largest(TorchDispatchMode):
    """The largest tensor that is made, in bytes; views are none."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("scaling", ["identity", "kronecker"])
def test_a_full_matrix_has_no_other_beside_it(scaling):
    n = 1_600
    w = nn.Parameter(torch.linspace(-1.0, 1.0, n, dtype=torch.float64).reshape(40, 40))
    problem = Problem(nn.ParameterList([w]), lambda: (w**4).sum() + (w.sum(1) ** 2).sum())
    opt = adaqn.BFGS([w], scaling=scaling, max_iter=3)
    problem.run(opt, 1)
    opt.reset_history()
    with Largest() as made:  # H begins again
        problem.run(opt, 1)
    assert opt.stats.pairs > 0
    assert made.bytes < 0.2 * 8 * n**2
