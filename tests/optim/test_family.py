"""The methods that the paper names, each against its dense formula in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import inside
from adaqn import OLBFGS, RES, SQN, BarzilaiBorwein, HessianProduct, SdLBFGS
from adaqn.core.barzilai_borwein import BoundedBarzilaiBorwein, MeanBarzilaiBorwein
from adaqn.core.pairs import Damping, Shift, products
from adaqn.core.regularised import Regularised
from adaqn.optim.curvatures import hessian_product
from oracles import NoisyValley, Vector, dense_bfgs, empty_pairs, random_spd, relative_error, run, take_step

N = 12
CLOSURE_METHODS = [OLBFGS, RES, SdLBFGS]


def in_training(make, steps=9, **options):
    problem = NoisyValley(N, noise=0.1)
    model = Vector(problem.w0)
    opt = make(model.parameters(), lr=0.1, memory_size=4, **options)
    run(opt, model, problem, range(steps))
    assert opt.stats.pairs == 4
    return problem, model, opt


def matrix_of(opt):
    """The matrix that turns a gradient into a direction, column by column."""
    columns = [inside.direction(opt, unit) for unit in torch.eye(N, dtype=torch.float64)]
    return torch.stack(columns, dim=1)


def stored(opt):
    pairs = inside.pairs(opt)
    return [s for s, _ in pairs], [y for _, y in pairs]


@pytest.mark.parametrize("make", [OLBFGS, SdLBFGS])
def test_the_direction_is_the_dense_bfgs_matrix_times_the_gradient(make):
    _, _, opt = in_training(make)
    S, Y = stored(opt)
    H = dense_bfgs(S, Y, opt.scaling.factor * torch.eye(N, dtype=torch.float64))
    assert relative_error(matrix_of(opt), H) < 1e-10
    assert torch.linalg.eigvalsh(H).min() > 0


def test_the_initial_scaling_of_olbfgs_is_the_mean_over_its_memory():
    _, _, opt = in_training(OLBFGS, regularisation=0.1)
    S, Y = stored(opt)
    expected = sum(float(s @ y) / float(y @ y) for s, y in zip(S, Y, strict=True)) / 4
    assert opt.scaling.factor == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_a_pair_of_olbfgs_is_the_change_of_the_gradient_on_the_same_batch(shift):
    problem = NoisyValley(N)
    model = Vector(problem.w0)
    opt = OLBFGS(model.parameters(), lr=0.5, memory_size=3, regularisation=shift)
    before = model.vector()
    run(opt, model, problem, range(1))
    ((s, y),), after = inside.pairs(opt), model.vector()
    torch.testing.assert_close(s, after - before, rtol=0, atol=1e-15)
    expected = problem.gradient(after, 0) - problem.gradient(before, 0) + shift * (after - before)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-15)


def dense_regularised(S, Y, sigma, delta, gamma):
    """B by the direct BFGS formula, plus δI, inverted."""
    B = sigma * torch.eye(N, dtype=torch.float64)
    for s, y in zip(S, Y, strict=True):
        Bs = B @ s
        B = B - torch.outer(Bs, Bs) / (s @ Bs) + torch.outer(y, y) / (s @ y)
    B_hat = B + delta * torch.eye(N, dtype=torch.float64)
    return B_hat, torch.linalg.inv(B_hat) + gamma * torch.eye(N, dtype=torch.float64)


def test_the_direction_of_res_is_its_dense_formula_and_its_matrix_is_bounded():
    delta, gamma = 0.05, 0.01
    _, _, opt = in_training(RES, delta=delta, gamma=gamma)
    S, Y = stored(opt)
    B_hat, expected = dense_regularised(S, Y, 1.0 / opt.scaling.factor, delta, gamma)
    assert relative_error(matrix_of(opt), expected) < 1e-9
    assert torch.linalg.eigvalsh(B_hat).min() >= delta - 1e-12
    eigenvalues = torch.linalg.eigvalsh(matrix_of(opt))
    assert eigenvalues.min() > gamma
    assert eigenvalues.max() <= gamma + 1.0 / delta + 1e-9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 7), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_res_gives_a_descent_direction_for_any_pairs(seed, count, dtype):
    generator = torch.Generator().manual_seed(seed)
    A, pairs, scaling = random_spd(N, generator).to(dtype), empty_pairs(5, N, dtype), BarzilaiBorwein()
    for _ in range(count):
        s = torch.randn(N, generator=generator, dtype=torch.float64).to(dtype)
        y = A @ s
        pairs.push(s, y)
        scaling.on_stored(float(s @ y), float(y @ y))
    g = torch.randn(N, generator=generator, dtype=torch.float64).to(dtype)
    d = Regularised(1e-3, 1e-4)(g.clone(), pairs, scaling, out=torch.empty_like(g))
    assert float(g @ d) > 0
    slots = pairs.order
    S, Y = [pairs.S[i].double() for i in slots], [pairs.Y[i].double() for i in slots]
    _, expected = dense_regularised(S, Y, 1.0 / scaling.factor, 1e-3, 1e-4)
    assert relative_error(d, expected @ g.double()) < (1e-7 if dtype is torch.float64 else 1e-2)


def test_the_newest_pair_of_res_gives_back_the_measured_change():
    delta = 0.05
    _, _, opt = in_training(RES, delta=delta, gamma=0.0)
    *_, (s, y) = inside.pairs(opt)
    B_hat, _ = dense_regularised(*stored(opt), 1.0 / opt.scaling.factor, delta, 0.0)
    torch.testing.assert_close(B_hat @ s, y + delta * s, rtol=1e-9, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(-8, 8), delta=st.floats(1e-6, 1e3))
def test_damping_keeps_a_quarter_of_the_initial_curvature(seed, scale, delta):
    generator = torch.Generator().manual_seed(seed)
    s, y = torch.randn(2, N, generator=generator, dtype=torch.float64)
    y *= 10.0**scale
    scaling = BoundedBarzilaiBorwein(delta)
    measured = y.clone()
    Damping()(s, y, scaling)
    ss, sy, _ = products(s, y)
    assert sy >= 0.25 * ss / scaling.factor * (1 - 1e-9)
    assert 1.0 / scaling.factor >= delta * (1 - 1e-12)
    if measured @ s >= 0.25 * ss / scaling.factor:
        assert torch.equal(y, measured)  # nothing to repair
    else:
        along = ss / scaling.factor
        theta = 0.75 * along / (along - float(measured @ s))
        torch.testing.assert_close(y, theta * measured + (1 - theta) * s / scaling.factor, rtol=1e-9, atol=1e-12)


def test_sdlbfgs_stores_pairs_of_negative_curvature():
    """f = −½‖w‖²: every measured pair has s·y < 0."""
    model = Vector(torch.ones(N, dtype=torch.float64))
    opt = SdLBFGS(model.parameters(), lr=0.01)
    for _ in range(10):
        take_step(opt, lambda: model.set_gradient(-model.vector()))
    assert opt.stats.stored == 10
    assert torch.linalg.eigvalsh(matrix_of(opt)).min() > 0


@pytest.mark.parametrize("make", [OLBFGS, RES])
def test_pairs_of_negative_curvature_are_not_stored_by_the_others(make):
    model = Vector(torch.ones(N, dtype=torch.float64))
    opt = make(model.parameters(), lr=0.01)
    for _ in range(10):
        take_step(opt, lambda: model.set_gradient(-model.vector()))
    assert (opt.stats.stored, opt.stats.skipped) == (0, 10)


# ---------------------------------------------------------------------- SQN


class Valley(torch.nn.Module):
    """A model whose output is its own loss, on a batch that shifts it."""

    def __init__(self, n=6):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.w = torch.nn.Parameter(torch.randn(n, dtype=torch.float64, generator=generator))
        self.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.A = random_spd(n, generator)

    def forward(self, shift):
        w = self.w - shift
        return 0.5 * w @ self.A @ w + 0.1 * torch.sin(3.0 * w).sum()


def loss_of(output, target):
    return output


def valley_batches(count=3):
    return [(torch.full((6,), 0.1 * i, dtype=torch.float64), torch.zeros(1)) for i in range(count)]


@pytest.mark.parametrize("finite_difference", [None, 1e-5])
def test_a_pair_of_sqn_is_the_hessian_times_s(finite_difference):
    model = Valley()
    curvature = HessianProduct(model, loss_of, valley_batches(), finite_difference=finite_difference)
    opt = SQN(model.parameters(), lr=0.05, curvature=curvature, cycle_length=4)
    path = []
    for _ in range(12):
        opt.zero_grad()
        model(torch.zeros(6, dtype=torch.float64)).backward()
        opt.step()
        path.append(model.w.detach().clone())
    averages = [torch.stack(path[i : i + 4]).mean(0) for i in (0, 4, 8)]
    for k, (s, y) in enumerate(inside.pairs(opt)):
        expected_s = averages[k + 1] - averages[k]
        shift = valley_batches()[k][0]
        hessian = torch.autograd.functional.hessian(
            lambda w, shift=shift: 0.5 * (w - shift) @ model.A @ (w - shift) + 0.1 * torch.sin(3.0 * (w - shift)).sum(),
            averages[k + 1],
        )
        torch.testing.assert_close(s[:6], expected_s, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(y[:6], hessian @ expected_s, rtol=1e-6 if finite_difference else 1e-10, atol=1e-12)
        assert torch.equal(y[6:], torch.zeros(2, dtype=torch.float64))
    assert opt.stats.stored == 2


@pytest.mark.parametrize("cell", [torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU])
def test_hessian_products_of_recurrent_nets_equal_finite_differences(cell):
    torch.manual_seed(0)
    model, x, target = (
        cell(3, 4, batch_first=True).double(),
        torch.randn(5, 6, 3).double(),
        torch.randn(5, 6, 4).double(),
    )
    w = [p.detach() for p in model.parameters()]
    s = [torch.randn_like(p) for p in w]
    names = [name for name, _ in model.named_parameters()]

    def losses(params):
        named = dict(zip(names, params, strict=True))
        return (torch.func.functional_call(model, named, (x,))[0] - target).square().mean()

    h = 1e-5
    ahead = torch.autograd.grad(losses(a := [(p + h * t).requires_grad_() for p, t in zip(w, s, strict=True)]), a)
    behind = torch.autograd.grad(losses(b := [(p - h * t).requires_grad_() for p, t in zip(w, s, strict=True)]), b)
    for y, up, down in zip(hessian_product(losses, w, s), ahead, behind, strict=True):
        torch.testing.assert_close(y, (up - down) / (2 * h), rtol=1e-5, atol=1e-8)


def test_a_loss_that_is_linear_has_no_curvature():
    (y,) = hessian_product(lambda p: p[0].sum(), [torch.ones(3)], [torch.ones(3)])
    assert torch.equal(y, torch.zeros(3))


# ---------------------------------------------------------------------- what all of them must do


@pytest.mark.parametrize("make", CLOSURE_METHODS)
def test_without_a_closure_one_error_says_what_is_needed(make):
    model = Vector(torch.ones(N))
    opt = make(model.parameters())
    model.set_gradient(torch.ones(N))
    with pytest.raises(
        RuntimeError, match=rf"{make.__name__} compares two gradients of the same batch.*step\(closure\)"
    ):
        opt.step()
    assert torch.equal(model.vector(), torch.ones(N))


@pytest.mark.parametrize("make", CLOSURE_METHODS)
def test_the_second_evaluation_draws_the_same_random_numbers(make):
    """Dropout: two masks would make y a difference of two losses."""
    model = Vector(torch.ones(N, dtype=torch.float64))
    opt = make(model.parameters(), lr=1e-3)
    drawn = []

    def closure():
        drawn.append(torch.rand(1).item())
        model.set_gradient(model.vector())

    for _ in range(5):
        opt.step(closure)
    assert drawn[0::2] == drawn[1::2]
    assert len(set(drawn)) == 5


@pytest.mark.parametrize("make", CLOSURE_METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("evaluation", [0, 1])
def test_a_gradient_that_is_not_finite_at_either_point_does_no_harm(make, bad, evaluation):
    problem = NoisyValley(N)
    model = Vector(problem.w0)
    opt = make(model.parameters(), lr=0.1)
    run(opt, model, problem, range(5))
    pairs, before, calls = opt.stats.pairs, model.vector(), []

    def closure():
        calls.append(1)
        g = problem.gradient(model.vector(), 5)
        model.set_gradient(g * bad if len(calls) == evaluation + 1 else g)

    opt.step(closure)
    assert model.vector().isfinite().all()
    assert torch.equal(model.vector(), before)  # no step, or one that is taken back
    if evaluation == 0:
        assert opt.stats.nonfinite == 1
        assert opt.stats.pairs == pairs
    else:
        assert opt.stats.rejected == 1
    path = run(opt, model, problem, range(6, 30))
    assert path.isfinite().all()


def test_a_direction_that_is_not_finite_is_not_taken():
    problem = NoisyValley(N)
    model = Vector(problem.w0)
    opt = OLBFGS(model.parameters(), lr=0.1)
    run(opt, model, problem, range(5))
    opt.scaling.factor = math.inf
    before = model.vector()
    run(opt, model, problem, range(5, 6))
    assert torch.equal(model.vector(), before)
    assert opt.stats.pairs == 0
    assert run(opt, model, problem, range(6, 30)).isfinite().all()


def test_the_decaying_step_is_tau_over_tau_plus_k():
    model = Vector(torch.zeros(N, dtype=torch.float64))
    opt = OLBFGS(model.parameters(), lr=1.0, decay_steps=3.0, initial_scaling=1.0)
    g = torch.ones(N, dtype=torch.float64)  # constant: y = 0, nothing is ever stored
    for k in range(4):
        before = model.vector()
        take_step(opt, lambda: model.set_gradient(g))
        torch.testing.assert_close(before - model.vector(), g * 3.0 / (3.0 + k))


def test_ratios_of_the_mean_scaling_survive_saving():
    scaling, other = MeanBarzilaiBorwein(3), MeanBarzilaiBorwein(3)
    for i in range(1, 6):
        scaling.on_stored(float(i), 1.0)
    other.load_numbers(0, scaling.numbers(0))
    for each in (scaling, other):
        each.on_stored(6.0, 1.0)
    assert scaling.factor == other.factor == 5.0


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (OLBFGS, {"regularisation": -1.0}, "regularisation must be a finite number of at least 0, got -1.0"),
        (OLBFGS, {"initial_scaling": 0.0}, "initial_scaling must be a positive number, got 0.0"),
        (OLBFGS, {"decay_steps": 0.0}, "decay_steps must be a positive number, got 0.0"),
        (OLBFGS, {"memory_size": 0}, "memory_size must be at least 1, got 0"),
        (RES, {"delta": -0.1}, "delta must be a finite number of at least 0"),
        (SdLBFGS, {"delta": 0.0}, "delta must be a positive number, got 0.0"),
    ],
)
def test_bad_numbers_are_named(make, options, message):
    with pytest.raises(ValueError, match=message):
        make([torch.nn.Parameter(torch.ones(2))], **options)


def test_unknown_options_are_refused():
    w = [torch.nn.Parameter(torch.ones(2))]
    with pytest.raises(TypeError, match="OLBFGS has no argument 'cycle_length'"):
        OLBFGS(w, cycle_length=3)
    with pytest.raises(TypeError, match="RES has a direction of its own"):
        RES(w, direction="gram")
    with pytest.raises(TypeError, match="curvature must be a HessianProduct"):
        SQN(w, curvature=3)
    with pytest.raises(ValueError, match="finite_difference must be a positive"):
        HessianProduct(Valley(), loss_of, valley_batches(), finite_difference=0.0)
    with pytest.raises(ValueError, match="must be finite"):
        Shift(math.nan)


def test_sqn_sees_the_same_curvature_when_it_maximizes():
    minimized, maximized = Valley(), Valley()
    down = SQN(
        minimized.parameters(), 0.05, curvature=HessianProduct(minimized, loss_of, valley_batches()), cycle_length=2
    )
    up = SQN(
        maximized.parameters(), 0.05, maximize=True, cycle_length=2,
        curvature=HessianProduct(maximized, lambda output, target: -output, valley_batches()),
    )  # fmt: skip
    for _ in range(12):
        for opt, model, sign in ((down, minimized, 1.0), (up, maximized, -1.0)):
            opt.zero_grad()
            (sign * model(torch.zeros(6, dtype=torch.float64))).backward()
            opt.step()
    assert up.stats == down.stats
    assert up.stats.stored > 0
    assert torch.equal(minimized.w, maximized.w)


@pytest.mark.parametrize("make", CLOSURE_METHODS)
def test_a_pair_is_the_change_over_its_own_step_whatever_happened_before(make):
    """A closure that raised at its second run, or weights moved from outside, leave no wrong pair behind."""
    A = random_spd(N)
    model = Vector(torch.ones(N, dtype=torch.float64))
    opt = make(model.parameters(), lr=0.05, memory_size=1)
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("out of memory")
        model.set_gradient(A @ model.vector())

    shift = {OLBFGS: 0.0, RES: -1e-3, SdLBFGS: 0.0}[make]
    for k in range(8):
        if k == 5:
            with torch.no_grad():
                for p in model.pieces:
                    p.clamp_(-0.3, 0.3)
        try:
            opt.step(closure)
        except RuntimeError:
            continue
        ((s, y),) = inside.pairs(opt)
        torch.testing.assert_close(y, A @ s + shift * s, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:50 cycles in a row")
@pytest.mark.parametrize("make", CLOSURE_METHODS)
def test_a_step_to_where_there_is_no_gradient_is_taken_back(make):
    p = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    opt = make([p], lr=0.8, initial_scaling=1.0)

    def closure():
        opt.zero_grad()
        loss = (2 * torch.sqrt(p) + p).sum()
        loss.backward()
        return loss

    for _ in range(60):
        opt.step(closure)
        assert float(p.detach()) > 0
    assert float(p.detach()) < 0.4


def test_a_step_of_length_zero_says_nothing_about_the_scaling():
    model = Vector(torch.ones(N, dtype=torch.float64))
    opt = SdLBFGS(model.parameters(), lr=0.0)
    take_step(opt, lambda: model.set_gradient(model.vector()))
    assert opt.scaling.factor == 1.0


def test_one_hessian_product_serves_two_optimizers():
    """Each has its own place in the batches: what one takes is not missing to the other."""
    model, alone = Valley(), Valley()
    shared = HessianProduct(model, loss_of, valley_batches())
    one, two = (SQN([p], lr=0.05, curvature=shared, cycle_length=2) for p in (model.w, model.unused))
    expected = SQN([alone.w], lr=0.05, curvature=HessianProduct(alone, loss_of, valley_batches()), cycle_length=2)
    for _ in range(12):
        for net, optimizers in ((model, (one, two)), (alone, (expected,))):
            net.zero_grad()
            net(torch.zeros(6, dtype=torch.float64)).backward()
            net.unused.grad = net.unused.detach().clone()
            for opt in optimizers:
                opt.step()
    assert expected.stats.stored == 5
    assert torch.equal(model.w, alone.w)


def test_the_state_of_another_method_is_refused():
    states = {make: in_training(make)[2].state_dict() for make in CLOSURE_METHODS}
    for make in CLOSURE_METHODS:
        for other in CLOSURE_METHODS:
            if other is not make:
                opt = make(Vector(torch.ones(N, dtype=torch.float64)).parameters(), memory_size=4)
                with pytest.raises(ValueError):
                    opt.load_state_dict(states[other])
