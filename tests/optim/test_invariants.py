"""The invariants of the design, each by its name."""

import copy
import math

import pytest
import torch

import inside
from adaqn import Kronecker, Outcome, PairOptions, RejectOptions, StorageOptions
from inside import kept, number
from oracles import NoisyValley, Vector, as_printed, assert_same, dense_bfgs, quiet, run, with_history
from scripted import follow


def dense_h(opt):
    stored = inside.pairs(opt)
    H0 = torch.diag(opt.scaling.vectors["sum"].rsqrt())
    return dense_bfgs([s for s, _ in stored], [y for _, y in stored], H0), stored


@pytest.mark.parametrize("test, eps", [("absolute", 3.0), ("scale_free", 0.75)])
def test_stored_means_enough_curvature_and_positive_definite_h(test, eps):
    """stored ⇒ s·y > ε‖s‖² (or ε‖s‖‖y‖) and H ≻ 0."""
    problem = NoisyValley(noise=1.0)
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=3, pairs=PairOptions(memory_size=4, eps=eps, test=test))
    seen = 0
    for k in range(150):
        run(opt, model, problem, range(k, k + 1))
        H, stored = dense_h(opt)
        for s, y in stored:
            assert s @ y > eps * (s @ s if test == "absolute" else s.norm() * y.norm())
        assert torch.linalg.eigvalsh((H + H.T) / 2).min() > 0
        seen = max(seen, len(stored))
    assert seen == 4
    assert opt.stats.skipped > 0


def test_newest_pair_satisfies_the_secant_equation():
    """H·y = s for the newest pair."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    H, stored = dense_h(opt)
    s, y = stored[-1]
    torch.testing.assert_close(H @ y, s)
    torch.testing.assert_close(inside.direction(opt, y), s)


def test_empty_memory_is_adagrad():
    """No pair in memory: torch's Adagrad to 1e-14 in float64."""
    problem = NoisyValley()
    ours, theirs = Vector(problem.w0), Vector(problem.w0)
    opt = quiet(ours.parameters(), lr=0.1, pairs=PairOptions(eps=1e9))
    adagrad = torch.optim.Adagrad(theirs.parameters(), lr=0.1, initial_accumulator_value=1e-4, eps=0)
    for k in range(200):
        for model in (ours, theirs):
            model.set_gradient(problem.gradient(theirs.vector(), k))
        opt.step()
        adagrad.step()
    assert (ours.vector() - theirs.vector()).abs().max() < 1e-14
    assert opt.stats.stored == 0


def test_state_after_rejected():
    """Pairs and F̃ empty, the accumulator kept (D3), weights a copy of the anchor (D2), a fresh window."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = follow(as_printed(model.parameters(), lr=0.05, cycle_length=3), 3.0, 2.0, 1.0, 9.0, 1.0)
    run(opt, model, problem, range(9))
    anchor, accumulated = kept(opt, "anchor"), kept(opt, "scaling_sum")
    assert opt.stats.pairs == 2
    run(opt, model, problem, range(9, 12))
    assert (opt.stats.rejected, opt.stats.pairs) == (1, 0)
    assert number(opt, "curvature_size") == 0
    assert number(opt, "window_count") == 0
    assert not kept(opt, "window").any()
    assert (kept(opt, "scaling_sum") > accumulated).all()
    assert torch.equal(model.vector(), anchor)
    run(opt, model, problem, range(12, 13))
    assert torch.equal(kept(opt, "anchor"), anchor), "the step after a rejection must not move the anchor itself"
    assert not torch.equal(model.vector(), anchor)
    assert opt.stats.steps == 13


def test_rejection_may_reset_the_accumulator():
    """D3's option."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), lr=0.05, cycle_length=3, reject=RejectOptions(reset_scaling=True))
    follow(opt, 1.0, 9.0)
    run(opt, model, problem, range(6))
    assert opt.stats.rejected == 1
    assert torch.equal(kept(opt, "scaling_sum"), torch.full((problem.n,), 1e-4, dtype=torch.float64))


def test_state_after_skipped():
    """The anchor stays, so that the next s is longer; pairs, F̃ and weights are untouched."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=3, pairs=PairOptions(eps=1e9))
    run(opt, model, problem, range(3))
    anchor = kept(opt, "anchor")
    run(opt, model, problem, range(3, 6))
    assert opt.stats.skipped == 1
    assert torch.equal(kept(opt, "anchor"), anchor)
    assert number(opt, "curvature_size") == 6
    assert number(opt, "window_count") == 0
    assert not torch.equal(model.vector(), anchor)


@pytest.mark.parametrize("patience", [2, 0])
def test_anchor_moves_on_after_so_many_skips(patience):
    """D6."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=1, pairs=PairOptions(eps=1e9, anchor_patience=patience))
    run(opt, model, problem, range(1))
    first = kept(opt, "anchor")
    path = run(opt, model, problem, range(1, 8))
    expected = path[5] if patience else first  # skips at steps 2 to 8; every second one moves the anchor
    torch.testing.assert_close(kept(opt, "anchor"), expected, rtol=0, atol=0)


@pytest.mark.parametrize("first_values", [(math.nan, 1.0), (math.inf, 1.0)])
def test_first_value_that_is_not_finite_returns_to_the_start(first_values):
    """D5: the anchor is w₀ until the first cycle ends."""
    problem = NoisyValley()
    model, events = Vector(problem.w0), []
    opt = follow(as_printed(model.parameters(), cycle_length=2, on_cycle=events.append), *first_values)
    run(opt, model, problem, range(2))
    assert [e.outcome for e in events] == [Outcome.REJECTED]
    assert torch.equal(model.vector(), problem.w0)
    run(opt, model, problem, range(2, 4))
    assert events[-1].outcome is Outcome.STARTED


def test_a_monitor_that_raises_leaves_the_parameters_as_they_were():
    problem = NoisyValley()
    model, plain = Vector(problem.w0), Vector(problem.w0)
    broken = True

    def monitor():
        if broken:
            raise OSError("the disk with the monitoring set is gone")
        return float(problem.loss(model.vector()))

    opt = as_printed(model.parameters(), lr=0.05, cycle_length=3, monitor=monitor)
    without = quiet(plain.parameters(), lr=0.05, cycle_length=3)
    run(opt, model, problem, range(2))
    expected = run(without, plain, problem, range(3))
    with pytest.raises(OSError, match="gone"):
        run(opt, model, problem, range(2, 3))
    assert torch.equal(model.vector(), expected[-1])
    assert opt.stats.cycles == 0
    broken = False
    run(opt, model, problem, range(3, 4))  # the cycle that could not be judged is judged now
    assert opt.stats.cycles == 1


def test_the_monitor_is_asked_once_per_cycle_while_its_set_is_fixed():
    """D8, and D7: with advance() it is asked twice, after moving on."""
    problem = NoisyValley()
    calls = []

    class Fixed:
        def __call__(self):
            calls.append("f")
            return 1.0

    class Rotating(Fixed):
        def advance(self):
            calls.append("advance")

    for monitor, expected in ((Fixed(), ["f"] * 4), (Rotating(), ["advance", "f"] + 3 * ["advance", "f", "f"])):
        calls.clear()
        model = Vector(problem.w0)
        run(as_printed(model.parameters(), cycle_length=2, monitor=monitor), model, problem, range(8))
        assert calls == expected


def test_assigning_a_monitor_forgets_the_loss_at_the_anchor():
    """D7."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), cycle_length=2, monitor=lambda: 1.0)
    run(opt, model, problem, range(4))
    opt.monitor = lambda: 100.0  # another scale: against the old value every cycle would be rejected
    run(opt, model, problem, range(4, 8))
    assert opt.stats.rejected == 0


@pytest.mark.parametrize(
    "preset, first", [("paper", 1), ("paper", 20), ("modern", 1), ("modern", 20), ("kronecker", 20)]
)
def test_a_nonfinite_gradient_leaves_everything_as_it_was(preset, first):
    """D9: but for the counters, and the place in the cycle; bases, of which none is due here, go by a count of all."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    options = {"lr": 0.01, "cycle_length": 6, "weight_decay": 0.1, "pairs": PairOptions(fisher_size=8)}
    if preset == "kronecker":
        options["scaling"] = Kronecker(refresh=100)
    opt = quiet(model.parameters(), preset=preset, **options)
    run(opt, model, problem, range(first))
    weights, stats, before = model.vector(), opt.stats, copy.deepcopy(opt.state_dict())
    for bad in (math.nan, math.inf):
        model.set_gradient(torch.full((problem.n,), 1.0))
        model.pieces[1].grad[2] = bad
        opt.step()
    assert torch.equal(model.vector(), weights)
    assert (opt.stats.steps, opt.stats.nonfinite) == (stats.steps, 2)
    for entry, now in zip(before["state"].values(), opt.state_dict()["state"].values(), strict=False):
        in_cycle = {"window_steps": entry["window_steps"] + 2, "nonfinite": 2, "nonfinite_in_row": 2}
        if "scaling_seen" in entry:
            in_cycle["scaling_seen"] = entry["scaling_seen"] + 2
        assert_same({**entry, **in_cycle}, now)


@pytest.mark.parametrize("preset", ["paper", "modern"])
def test_a_run_with_nonfinite_gradients_is_the_run_without_them_in_cycles_that_are_shorter(preset):
    """D9: after a cycle of five with two gradients that are not finite, all is as after one of three."""
    problem = NoisyValley()
    models = Vector(problem.w0), Vector(problem.w0)
    pairs = PairOptions(memory_size=3)
    opts = [
        quiet(m.parameters(), preset=preset, lr=0.01, cycle_length=L, pairs=pairs, warm_up=0)
        for m, L in zip(models, (5, 3), strict=True)
    ]
    for k in range(60):
        for model, opt in zip(models, opts, strict=True):
            run(opt, model, problem, range(k, k + 1))
        if k % 3 != 2:  # after the first and after the second of a cycle
            models[0].set_gradient(torch.full((problem.n,), math.nan))
            opts[0].step()
    assert torch.equal(models[0].vector(), models[1].vector())
    ours, theirs = (opt.stats for opt in opts)
    assert ours.nonfinite == 40
    assert (ours.steps, ours.cycles, ours.stored) == (theirs.steps, theirs.cycles, theirs.stored) == (60, 20, 19)


def test_a_run_interrupted_after_a_nonfinite_gradient_resumes_bit_for_bit():
    problem = NoisyValley()
    for stop in (6, 7, 8, 9):
        model, resumed = Vector(problem.w0), Vector(problem.w0)
        opt, other = (quiet(m.parameters(), preset="modern", cycle_length=4) for m in (model, resumed))
        bad = {5, 6, 8, 9, 10, 11, 14}

        def advance(opt, model, k, bad=bad):
            g = problem.gradient(model.vector(), k)
            model.set_gradient(g * math.nan if k in bad else g)
            opt.step()

        for k in range(stop):
            advance(opt, model, k)
        resumed.load_state_dict(model.state_dict())
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
        for k in range(stop, 30):
            advance(opt, model, k)
            advance(other, resumed, k)
            assert torch.equal(model.vector(), resumed.vector())
        assert opt.stats == other.stats
        assert opt.stats.nonfinite == 7


def test_nonfinite_gradient_may_raise():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), on_nonfinite="raise")
    model.set_gradient(torch.full((problem.n,), math.nan))
    with pytest.raises(FloatingPointError, match="inf or nan"):
        opt.step()
    assert torch.equal(model.vector(), problem.w0)


@pytest.mark.parametrize("how", ["weights", "patience"])
def test_weights_that_can_give_no_gradient_return_to_the_anchor(how):
    """D13: otherwise every later step would be skipped, for ever."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=3)
    run(opt, model, problem, range(4))
    anchor = kept(opt, "anchor").clone()
    if how == "weights":
        with torch.no_grad():
            model.pieces[1][0] = math.inf
    for _ in range(2 if how == "weights" else 20):  # both are ends of cycles
        assert opt.stats.rejected == 0
        model.set_gradient(torch.full((problem.n,), math.nan))
        opt.step()
    assert torch.equal(model.vector(), kept(opt, "anchor"))
    assert torch.equal(model.vector(), anchor) == (how == "weights"), "a cycle with one finite step has an average"
    assert (opt.stats.rejected, opt.stats.nonfinite) == (1, 2 if how == "weights" else 20)


def test_a_candidate_that_is_not_finite_is_rejected_without_a_monitor():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=2, lr=1e-3)
    run(opt, model, problem, range(3))
    anchor = kept(opt, "anchor")
    with torch.no_grad():
        model.pieces[2].fill_(math.inf)
    model.set_gradient(torch.ones(problem.n))
    opt.step()
    assert torch.equal(model.vector(), anchor)
    assert opt.stats.rejected == 1


def test_wide_weights_beyond_their_parameters_are_no_place_to_return_to():
    """A gradient of 1e30 leads the copies where bfloat16 is infinite: no such average is accepted (D13)."""
    a, b = (torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float64, torch.bfloat16))
    storage = StorageOptions(master_weights=True)
    opt = quiet([a, b], scaling="identity", lr=1.0, cycle_length=2, storage=storage)
    for k in range(4):
        for p in (a, b):
            p.grad = p.detach().clone() * 0.1
        opt.param_groups[0]["lr"] = 1e10 if k == 3 else 1.0
        if k == 3:
            b.grad.fill_(1e30)
        opt.step()
    assert opt.stats.rejected == 1
    assert max(p.detach().abs().max() for p in (a, b)) < 1.0
