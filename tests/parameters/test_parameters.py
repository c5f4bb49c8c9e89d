"""Param groups, frozen and late parameters, low precision, and weights changed from outside."""

import pytest
import torch
from torch import nn

import inside
from adaqn import PairOptions, StorageOptions
from inside import kept
from oracles import NO_PAIRS, SMALL, NoisyValley, Vector, dense_bfgs, quiet, run, with_history


def two_groups(model, lr_first, lr_second, **options):
    first, *rest = model.parameters()
    return quiet([{"params": rest, "lr": lr_second}, {"params": [first], "lr": lr_first}], **options)


def test_groups_of_equal_step_size_are_one_group():
    problem = NoisyValley()
    one, two = Vector(problem.w0), Vector(problem.w0)
    first, *rest = two.parameters()
    expected = run(quiet(one.parameters(), lr=0.03), one, problem, range(40))
    opt = quiet([{"params": [first]}, {"params": rest, "lr": 0.03}], lr=0.03)
    assert torch.equal(run(opt, two, problem, range(40)), expected)


def test_groups_of_different_step_size_step_along_the_split_matrix():
    """d = Λ^½ H Λ^½ g, against the dense matrices; always downhill."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    first, *rest = model.parameters()
    opt = quiet([{"params": [first], "lr": 0.5}, {"params": rest, "lr": 0.005}], cycle_length=2)
    run(opt, model, problem, range(10))
    assert opt.stats.pairs >= 3
    before, g = model.vector(), problem.gradient(model.vector(), 10)
    stored = inside.pairs(opt)
    H0 = torch.diag((kept(opt, "scaling_sum") + g**2).rsqrt())
    root = torch.diag(torch.tensor([0.5] + [0.005] * 11, dtype=torch.float64).sqrt())
    H = root @ dense_bfgs([s for s, _ in stored], [y for _, y in stored], H0) @ root
    run(opt, model, problem, range(10, 11))
    torch.testing.assert_close(before - model.vector(), H @ g)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_group_with_lr_zero_is_frozen_exactly(as_tensor):
    problem = NoisyValley()
    model = Vector(problem.w0)
    zero = torch.tensor(0.0) if as_tensor else 0.0
    opt = two_groups(model, zero, 0.05)
    run(opt, model, problem, range(40))
    assert model.pieces[0] == problem.w0[0]
    assert not torch.equal(model.vector()[1:], problem.w0[1:])


def test_every_step_goes_downhill_with_step_sizes_far_apart():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = two_groups(model, 0.1, 0.001, cycle_length=2)
    for k in range(150):
        before = model.vector()
        run(opt, model, problem, range(k, k + 1))
        assert (model.vector() - before) @ problem.gradient(before, k) < 0


def test_decoupled_weight_decay_per_group():
    w, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    opt = quiet([{"params": [w], "weight_decay": 0.5}, {"params": [v]}], lr=0.1)
    w.grad, v.grad = torch.zeros(2), torch.full((2,), 1e-3)
    opt.step()
    torch.testing.assert_close(w.detach(), torch.full((2,), 0.95))
    assert (v.detach() > 0.9).all()


def test_frozen_parameters_have_no_history():
    model = Vector(torch.randn(1006))
    model.pieces[2].requires_grad_(False)
    opt = quiet(model.parameters())
    assert opt.state_size() < 6 * 4 * 130 + 1000
    model.set_gradient(torch.randn(1006))
    model.pieces[2].grad = None
    opt.step()
    assert set(opt.state) == {model.pieces[0], model.pieces[1]}


@pytest.mark.parametrize("scaling, key", [("adagrad", "sum"), ("adam", "square_avg")])
def test_unfreezing_in_mid_training_restarts_the_history_and_says_so(scaling, key):
    problem = NoisyValley()
    model = Vector(problem.w0)
    model.pieces[2].requires_grad_(False)
    opt = quiet(model.parameters(), cycle_length=2, scaling=scaling)

    def steps(count):
        for k in range(count):
            model.set_gradient(problem.gradient(model.vector(), k))
            if not model.pieces[2].requires_grad:
                model.pieces[2].grad = None
            opt.step()

    steps(8)
    known = kept(opt, f"scaling_{key}")
    totals = opt.stats
    assert totals.pairs > 0
    model.pieces[2].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"from 2 tensors on cpu to 3 on cpu.*restarts"):
        steps(1)
    assert opt.stats.pairs == 0
    assert opt.stats.steps == totals.steps + 1
    now = kept(opt, f"scaling_{key}")
    assert now.shape == (12,)
    assert (now[:6] >= 0.9 * known).all(), "H0 keeps what it knew"
    if scaling == "adam":
        assert opt.scaling.steps == [9, 9, 1]
    steps(9)
    assert opt.stats.pairs > 0
    assert len(opt.state) == 3


def test_adding_a_group_in_mid_training_restarts_the_history_and_says_so():
    problem = NoisyValley()
    model, extra = Vector(problem.w0), nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = with_history(model, problem)
    opt.add_param_group({"params": [extra], "lr": 0.2})
    extra.grad = torch.ones(3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="from 3 tensors on cpu to 4"):
        run(opt, model, problem, range(23, 24))
    assert (extra.detach() < 1).all()
    assert opt.state[extra]["pairs_s"].shape == (4, 3)


def test_adding_a_group_before_training_is_silent():
    model, extra = Vector(torch.ones(12)), nn.Parameter(torch.ones(3))
    opt = quiet(model.parameters())
    opt.add_param_group({"params": [extra]})
    model.set_gradient(torch.ones(12))
    opt.step()
    assert opt.stats.steps == 1
    assert torch.equal(extra, torch.ones(3))  # it had no gradient


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_parameters_keep_float32_history(dtype):
    problem = NoisyValley()
    model = Vector(problem.w0).to(dtype)
    opt = with_history(model, problem)
    entry = opt.state[model.pieces[1]]
    wide = {"pairs_s", "pairs_y", "fisher", "anchor", "window", "scaling_sum"}
    assert {name: entry[name].dtype for name in wide} == dict.fromkeys(wide, torch.float32)
    assert all(p.dtype == dtype for p in model.parameters())


def test_master_weights_see_steps_too_small_for_the_parameters():
    """At 1.0 bfloat16 cannot see a step of 1e-3; ten of them it can."""
    moved = {}
    for master in (False, True):
        w = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        storage = StorageOptions(master_weights=master)
        opt = quiet([w], lr=1e-3, storage=storage, scaling="adam", pairs=NO_PAIRS, cycle_length=50)
        for _ in range(10):
            w.grad = torch.ones_like(w)
            opt.step()
        moved[master] = float(1 - w.detach().mean().float())
    assert moved[False] == 0.0
    assert moved[True] == pytest.approx(0.01, abs=2**-8)  # what bfloat16 can tell apart below 1


def test_mixed_dtypes_share_the_widest_history():
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = quiet([a, b])
    a.grad, b.grad = torch.ones(2), torch.ones(3, dtype=torch.float64)
    opt.step()
    assert opt.state[a]["anchor"].dtype == torch.float64
    assert a.dtype == torch.float32


def test_parameters_that_are_not_contiguous():
    w = nn.Parameter(torch.randn(4, 6, dtype=torch.float64).t())
    plain = nn.Parameter(w.detach().clone().contiguous())
    a, b = quiet([w], cycle_length=2), quiet([plain], cycle_length=2)
    for _ in range(12):
        g = torch.randn(6, 4, dtype=torch.float64)
        w.grad, plain.grad = g.clone(), g.t().contiguous().t()
        a.step()
        b.step()
    assert torch.equal(w, plain)


def test_reset_history_starts_from_the_weights_as_they_are():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem, storage=StorageOptions(master_weights=True))
    known = kept(opt, "scaling_sum")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    opt.reset_history()
    assert opt.stats.pairs == 0
    assert torch.equal(kept(opt, "anchor"), model.vector())
    assert torch.equal(kept(opt, "master"), model.vector())
    assert torch.equal(kept(opt, "scaling_sum"), known)
    before, g = model.vector(), problem.gradient(model.vector(), 23)
    run(opt, model, problem, range(23, 24))
    torch.testing.assert_close(before - model.vector(), 0.05 * g * (known + g**2).rsqrt())  # H0's step alone


def test_before_the_first_step_there_is_nothing_to_reset():
    model = Vector(torch.ones(12))
    opt = quiet(model.parameters())
    opt.reset_history()
    assert not opt.state
    assert opt.stats.steps == 0


@pytest.mark.parametrize("eps", [1e-4, 1e9])
def test_averaged_holds_the_last_accepted_candidate(eps):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=3, pairs=PairOptions(eps=eps))
    with opt.averaged():
        assert torch.equal(model.vector(), problem.w0)  # before the first cycle: the weights as they are
    path = run(opt, model, problem, range(4))
    with opt.averaged():  # made here, right after STARTED
        torch.testing.assert_close(model.vector(), path[:3].mean(0))
    assert torch.equal(model.vector(), path[-1])
    path = torch.cat([path, run(opt, model, problem, range(4, 11))])
    with opt.averaged():
        torch.testing.assert_close(model.vector(), path[6:9].mean(0))
    assert torch.equal(model.vector(), path[-1])


def test_averaged_is_saved_and_comes_back():
    problem = NoisyValley()
    model, other = Vector(problem.w0), Vector(problem.w0)
    opt = with_history(model, problem)
    before = opt.state_size()
    with opt.averaged():
        expected = model.vector()
    assert opt.state_size() == before + problem.n * 8
    loaded = quiet(other.parameters(), cycle_length=3, pairs=SMALL)
    loaded.load_state_dict(opt.state_dict())
    with loaded.averaged():
        assert torch.equal(other.vector(), expected)


def test_averaged_gives_the_weights_back_when_evaluation_raises():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    before = model.vector()
    with pytest.raises(KeyError), opt.averaged():
        raise KeyError("evaluation failed")
    assert torch.equal(model.vector(), before)


def test_no_step_inside_averaged():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    with opt.averaged(), pytest.raises(RuntimeError, match=r"inside averaged\(\)"):
        opt.step()
    with opt.averaged(), pytest.raises(RuntimeError, match="entered twice"), opt.averaged():
        pass


TORCH = {
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=1e-4, eps=0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.99),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.0, 0.999)),
}


@pytest.mark.parametrize("scaling", list(TORCH))
@pytest.mark.parametrize("from_state_dict", [False, True])
def test_warm_start_goes_on_where_torch_left_off(scaling, from_state_dict):
    problem = NoisyValley()
    model, control = Vector(problem.w0), Vector(problem.w0)
    source = TORCH[scaling](model.parameters())
    run(source, model, problem, range(20))
    expected = run(TORCH[scaling](control.parameters()), control, problem, range(40))[20:]
    opt = quiet(model.parameters(), scaling=scaling, pairs=NO_PAIRS)
    opt.warm_start(source.state_dict() if from_state_dict else source)
    torch.testing.assert_close(run(opt, model, problem, range(20, 40)), expected, rtol=1e-12, atol=1e-12)


def test_warm_start_from_complex_moments():
    z = nn.Parameter(torch.randn(4, dtype=torch.complex64))
    source = torch.optim.Adam([z])
    z.grad = torch.randn(4, dtype=torch.complex64)
    source.step()
    opt = quiet([z], scaling="adam")
    opt.warm_start(source)
    saved = torch.view_as_real(source.state[z]["exp_avg_sq"])
    assert torch.equal(opt.state[z]["scaling_square_avg"], saved)


def test_warm_start_refuses_what_does_not_fit():
    model = Vector(torch.ones(12))
    model.set_gradient(torch.ones(12))
    adam = torch.optim.Adam(model.parameters())
    adam.step()
    with pytest.raises(ValueError, match=r"starts from torch's Adagrad .*exp_avg_sq"):
        quiet(model.parameters()).warm_start(adam)
    with pytest.raises(ValueError, match="no second moments"):
        quiet(model.parameters(), scaling="identity").warm_start(adam)
    with pytest.raises(ValueError, match="3 parameters and this optimizer has 1"):
        quiet([model.pieces[0]], scaling="adam").warm_start(adam.state_dict())
