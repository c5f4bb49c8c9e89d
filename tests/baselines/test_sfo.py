"""SFO against dense float64 mathematics, and as an optimizer."""

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from inside_baselines import sfo_state
from torch import Tensor, nn

from adaqn.baselines import SFO
from adaqn.baselines.sfo_choice import farthest, gradient_is_noise, is_bad_update
from adaqn.baselines.sfo_hessian import fit, repaired, scale_range
from adaqn.baselines.sfo_model import SumModel, cholesky_factor
from adaqn.baselines.sfo_subspace import Subspace
from oracles import Vector, dense_bfgs, random_spd, relative_error


class Quadratics:
    """Σ ½ (w − c_i)ᵀ A_i (w − c_i), with a record of where each was evaluated."""

    def __init__(self, batches: int = 8, n: int = 20, dtype=torch.float64, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(batches + n)
        self.A = [scale * random_spd(n, generator) for _ in range(batches)]
        self.c = [torch.randn(n, dtype=torch.float64, generator=generator) for _ in range(batches)]
        self.model = Vector(3.0 * torch.randn(n, dtype=torch.float64, generator=generator)).to(dtype)
        self.minimum = torch.linalg.solve(sum(self.A), sum(A @ c for A, c in zip(self.A, self.c, strict=True)))
        self.log: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(batches)]

    def closure(self, opt: SFO, i: int, sign: float = 1.0, blow: float = 1.0):
        def evaluate() -> Tensor:
            opt.zero_grad()
            w = torch.cat([p.reshape(-1) for p in self.model.pieces])
            A, c = self.A[i].to(w.dtype), self.c[i].to(w.dtype)
            loss = sign * blow * 0.5 * (w - c) @ A @ (w - c)
            loss.backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in self.model.pieces])
            self.log[i].append((w.detach().clone(), gradient))
            return loss

        return evaluate

    def run(self, opt: SFO, steps: range, order=None, **options) -> Tensor:
        path = []
        for k in steps:
            i = opt.next_index() if order is None else order(k)
            opt.step(self.closure(opt, i, **options), i)
            path.append(self.model.vector())
        return torch.stack(path)


def orthonormality_error(space: Subspace) -> float:
    rows = space.rows.double()
    return float((rows @ rows.T - torch.eye(space.size, dtype=torch.float64)).abs().max())


# ---------------------------------------------------------------------- the subspace


@pytest.mark.parametrize("dtype, error", [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_the_basis_is_orthonormal_and_spans_what_it_was_given(dtype, error):
    space = Subspace(torch.zeros(12, 40, dtype=dtype))
    vectors = [torch.randn(40, dtype=dtype) * 10.0**k for k in range(-6, 3)]
    nearly_the_last = vectors[-1] + 0.3 * torch.randn(40, dtype=dtype)
    for v in [*vectors, nearly_the_last]:
        space.include(v)
    assert space.size == 10
    assert orthonormality_error(space) < error
    for v in [*vectors, nearly_the_last]:
        assert relative_error(space.lift(space.project(v)), v) < 10 * error
        dense = space.rows.double().T @ space.rows.double()
        assert relative_error(space.lift(space.project(v)), dense @ v.double()) < 10 * error


def test_directions_that_are_already_there_are_not_added():
    space = Subspace(torch.zeros(6, 30, dtype=torch.float64))
    a, b = torch.randn(2, 30, dtype=torch.float64)
    for v in (a, b, a - 2.0 * b, torch.zeros(30, dtype=torch.float64)):
        space.include(v)
    assert space.size == 2


def test_rows_as_many_as_columns_are_the_identity():
    space = Subspace(torch.zeros(5, 5))
    v = torch.randn(5)
    space.include(v)
    assert space.size == 5
    assert torch.equal(space.lift(space.project(v)), v)


def test_a_collapse_keeps_what_it_must_and_projects_the_rest():
    space = Subspace(torch.zeros(9, 50, dtype=torch.float64))
    for _ in range(9):
        space.include(torch.randn(50, dtype=torch.float64))
    keep = torch.randn(4, 9, dtype=torch.float64) * torch.logspace(-9, 3, 4, dtype=torch.float64)[:, None]
    kept = [space.lift(c) for c in keep]
    other = torch.randn(9, dtype=torch.float64)
    lifted = space.lift(other)
    T = space.collapse(torch.cat([keep, torch.zeros(1, 9, dtype=torch.float64)]))
    assert space.size == 4
    assert torch.allclose(T @ T.T, torch.eye(4, dtype=torch.float64), atol=1e-14)
    assert orthonormality_error(space) < 1e-14
    for c, v in zip(keep, kept, strict=True):
        assert relative_error(space.lift(T @ c), v) < 1e-14
    dense = torch.stack([v / v.norm() for v in kept])
    projector = dense.T @ torch.linalg.solve(dense @ dense.T, dense)
    assert relative_error(space.lift(T @ other), projector @ lifted) < 1e-10


def test_the_basis_stays_orthonormal_in_float32_over_many_collapses():
    space = Subspace(torch.zeros(12, 200))
    for _ in range(300):
        while space.room:
            space.include(torch.randn(200))
        space.collapse(torch.randn(4, 12, dtype=torch.float64))
    assert orthonormality_error(space) < 1e-6


# ---------------------------------------------------------------------- one Hessian


def convex_history(pairs: int = 4, n: int = 12) -> tuple[Tensor, Tensor]:
    A = random_spd(n)
    S = torch.randn(pairs, n, dtype=torch.float64) * torch.logspace(-5, 0, pairs, dtype=torch.float64)[:, None]
    return S, S @ A


def dense(fitted, n: int) -> Tensor:
    return fitted.scale * torch.eye(n, dtype=torch.float64) + fitted.vectors.T @ fitted.values.diag() @ fitted.vectors


@pytest.mark.parametrize("pairs", [1, 4, 9])
def test_the_hessian_is_the_dense_bfgs_formula(pairs):
    S, Y = convex_history(pairs)
    fitted = fit(S, Y, condition=1e8, fallback=1.0)
    H0 = torch.eye(12, dtype=torch.float64) / fitted.scale
    inverse = dense_bfgs(list(S), list(Y), H0)
    assert relative_error(dense(fitted, 12), torch.linalg.inv(inverse)) < 1e-9
    assert relative_error(dense(fitted, 12) @ S[-1], Y[-1]) < 1e-10


def test_the_start_of_bfgs_is_the_smallest_curvature_in_the_history():
    """By the squared secant equations: the smallest non-zero eigenvalue of Q = (S⁺ᵀ Yᵀ Y S⁺)^½."""
    S, Y = convex_history()
    secant = Y.T @ torch.linalg.pinv(S.T)
    eigenvalues = torch.linalg.eigvalsh(secant.T @ secant).clamp(min=0).sqrt()
    low, high = scale_range(S, Y)
    assert math.isclose(low, float(eigenvalues[-4]), rel_tol=1e-6)
    assert math.isclose(high, float(eigenvalues[-1]), rel_tol=1e-6)
    assert fit(S, Y, condition=1e8, fallback=1.0).scale == low


def test_negative_curvature_still_gives_a_positive_definite_hessian_of_bounded_condition():
    for seed in range(30):
        torch.manual_seed(seed)
        S, Y = torch.randn(2, 5, 12, dtype=torch.float64)
        eigenvalues = torch.linalg.eigvalsh(dense(fit(S, Y, condition=1e4, fallback=1.0), 12))
        assert eigenvalues[0] > 0
        assert eigenvalues[-1] / eigenvalues[0] < 1.01e4


def test_without_any_positive_eigenvalue_the_cautious_value_is_taken():
    assert torch.equal(repaired(torch.tensor([-3.0, -1.0]), 1e8, 7.0), torch.tensor([7.0, 7.0]))


def test_an_indefinite_sum_is_repaired():
    H = torch.diag(torch.tensor([4.0, -1e-9, 1.0], dtype=torch.float64))
    factor = cholesky_factor(H, 1e8)
    assert torch.allclose(factor @ factor.T, torch.diag(torch.tensor([4.0, 2.5, 1.0], dtype=torch.float64)))
    assert torch.equal(factor, factor.tril())


# ---------------------------------------------------------------------- the sum of models


def trained(n: int, steps: int, batches: int = 8, **options) -> tuple[Quadratics, SFO]:
    problem = Quadratics(batches, n)
    opt = SFO(problem.model.parameters(), batches=batches, **options)
    problem.run(opt, range(steps), order=lambda k: k % batches)
    return problem, opt


@pytest.mark.parametrize("n", [20, 200])
def test_every_hessian_is_built_from_the_gradients_of_its_own_minibatch(n):
    problem, opt = trained(n, 20 if n == 200 else 24, initial_curvature=20.0, history_size=2)
    m = sfo_state(opt)
    assert opt.stats.rejected == opt.stats.collapses == 0
    P = m.subspace.rows
    for i, log in enumerate(problem.log):
        pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(log)][-2:]
        assert int(m.model.pairs[i]) == len(pairs)
        S, Y = (torch.stack(rows) for rows in zip(*pairs, strict=True))
        H0 = torch.eye(n, dtype=torch.float64) / m.model.scales[i]
        expected = P @ torch.linalg.inv(dense_bfgs(list(S), list(Y), H0)) @ P.T
        assert relative_error(m.model.hessian(i)[: len(P), : len(P)], expected) < 1e-6


@pytest.mark.parametrize("n", [20, 200])
def test_positions_and_gradients_are_exact_in_the_subspace(n):
    problem, opt = trained(n, 100)
    m = sfo_state(opt)
    assert (opt.stats.collapses > 5) == (n == 200)
    assert orthonormality_error(m.subspace) < 1e-13
    size = m.subspace.size
    for i, log in enumerate(problem.log):
        w, g = log[-1]
        assert relative_error(m.subspace.lift(m.model.gradients[i, :size]), g) < 1e-10
        offset = m.subspace.lift((m.x - m.model.positions[i])[:size])
        assert float((offset - (problem.model.vector() - w)).norm()) < 1e-12 * float(w.norm())
        assert not m.model.positions[:, size:].any()


def test_the_total_is_the_sum_and_the_step_goes_to_its_minimum():
    problem, opt = trained(200, 75)
    m = sfo_state(opt)
    size, x = m.subspace.size, m.x
    H = sum(m.model.hessian(i) for i in range(8))[:size, :size]
    assert relative_error(m.model.total_hessian(size), H) < 1e-12
    assert float(torch.linalg.eigvalsh(H)[0]) > 0
    parts = [m.model.gradients[i] + m.model.hessian(i) @ (x - m.model.positions[i]) for i in range(8)]
    assert torch.allclose(m.model.total_gradient(x), sum(parts), atol=1e-10)
    before = m.model.total_gradient(m.x_prior)[:size]
    step = -opt.stats.step_scale * torch.linalg.solve(H, before)
    assert relative_error((m.x - m.x_prior)[:size], step) < 1e-8
    moved = problem.model.vector() - m.prior
    assert relative_error(moved, m.subspace.lift(step)) < 1e-8


def test_the_prediction_is_the_quadratic():
    _, opt = trained(20, 30)
    model = sfo_state(opt).model
    x = torch.randn(20, dtype=torch.float64)
    offset = x - model.positions[3]
    expected = model.losses[3] + model.gradients[3] @ offset + 0.5 * offset @ model.hessian(3) @ offset
    assert math.isclose(model.predicted(3, x), float(expected), rel_tol=1e-12)


def test_new_coordinates_are_those_of_the_projected_model():
    _, opt = trained(20, 40)
    model = sfo_state(opt).model
    T = torch.linalg.qr(torch.randn(20, 7, dtype=torch.float64)).Q.T
    origin = torch.randn(20, dtype=torch.float64)
    hessians = [T @ model.hessian(i) @ T.T for i in range(8)]
    positions, gradients = (model.positions - origin) @ T.T, model.gradients @ T.T
    model.rotate(T, origin)
    assert torch.allclose(model.positions[:, :7], positions)
    assert torch.allclose(model.gradients[:, :7], gradients)
    for i, H in enumerate(hessians):
        assert relative_error(model.hessian(i)[:7, :7], H) < 1e-12
    assert relative_error(model.total_hessian(7), sum(hessians)) < 1e-12
    assert not model.total_gradient(torch.zeros(20, dtype=torch.float64))[7:].any()


def test_a_collapse_forgets_pairs_that_it_mutilates():
    _, opt = trained(20, 40)
    model = sfo_state(opt).model
    S = model.history(0, 20)[0].clone()
    T = torch.linalg.qr(S[-1:].T).Q.T  # only the newest step of minibatch 0 survives whole
    model.rotate(T, torch.zeros(20, dtype=torch.float64), min_kept=0.999)
    assert int(model.pairs[0]) == 1
    assert math.isclose(float(model.history(0, 1)[0].norm()), float(S[-1].norm()), rel_tol=1e-12)


def empty_model(**options) -> SumModel:
    return SumModel(**{"batches": 3, "dimensions": 4, "history_size": 3, "initial_curvature": 1e5, "condition": 1e8,
                       "eps": 2e-16, **options})  # fmt: skip


def test_a_new_minibatch_gets_the_usual_curvature_of_the_others():
    model = empty_model()
    zero, g = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    model.record(0, zero, 1.0, g)
    model.refit(0, 4)
    assert float(model.scales[0]) == 1e5
    model.record(0, -g, 0.5, -6.0 * g)  # curvature 7 along g, and so everywhere
    model.refit(0, 4)
    model.record(1, -g, 1.0, g)
    model.refit(1, 4)
    assert math.isclose(float(model.scales[0]), 7.0)
    assert math.isclose(float(model.scales[1]), 7.0)


def test_a_step_too_short_to_change_a_gradient_is_followed_by_a_longer_one():
    model = empty_model()
    g = torch.ones(4, dtype=torch.float64)
    for k in range(3):
        model.record(0, -1e-17 * k * g, 1.0, g)
        model.refit(0, 4)
    assert math.isclose(float(model.scales[0]), 1e3)
    assert int(model.pairs[0]) == 0


# ---------------------------------------------------------------------- choices


def test_the_farthest_minibatch_is_chosen_by_either_metric():
    _, opt = trained(20, 60)
    model, x = sfo_state(opt).model, torch.randn(20, dtype=torch.float64)
    candidates = torch.tensor([True] * 4 + [False] * 4)
    for own in (True, False):
        metrics = [model.hessian(i) if own else model.total_hessian(20) for i in range(8)]
        distances = [float((x - model.positions[i]) @ metrics[i] @ (x - model.positions[i])) for i in range(4)]
        index, distance = farthest(model, x, candidates, own)
        assert index == distances.index(max(distances))
        assert math.isclose(distance, max(distances), rel_tol=1e-10)


def test_the_gradient_is_noise_when_its_standard_error_exceeds_it():
    H = random_spd(6)
    gradients = torch.randn(5, 6, dtype=torch.float64)
    mean = gradients.mean(0)
    inverse = torch.linalg.inv(H)
    error = sum((g - mean) @ inverse @ (g - mean) for g in gradients) / 20
    ratio = float(error / (mean @ inverse @ mean))
    factor = torch.linalg.cholesky(H)
    assert gradient_is_noise(gradients, factor, 0.99 * ratio)
    assert not gradient_is_noise(gradients, factor, 1.01 * ratio)


def test_an_update_is_bad_if_it_costs_more_than_the_others_win():
    _, opt = trained(20, 30)
    model = sfo_state(opt).model
    x = model.positions[2] + 0.1
    last, predicted = float(model.losses[2]), model.predicted(2, x)
    limit = predicted + 5.0 - (last - predicted)
    assert limit > last
    assert is_bad_update(model, 2, x, limit + 1e-6, 5.0, 1e-16)
    assert not is_bad_update(model, 2, x, limit - 1e-6, 5.0, 1e-16)
    assert not is_bad_update(model, 2, x, last - 1e-9, -100.0, 1e-16)
    model.evaluations[2] = 0
    others = model.losses[model.evaluations >= 2]
    high = float(others.mean() + 3.0 * others.std(correction=0))
    assert is_bad_update(model, 2, x, high * 1.001, 0.0, 1e-16)
    assert not is_bad_update(model, 2, x, high * 0.999, 0.0, 1e-16)


def test_minibatches_join_one_by_one_and_each_is_evaluated_twice_at_first():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    order, active, rejected = [], [], []
    for _ in range(60):
        i = opt.next_index()
        assert opt.next_index() == i  # asking changes nothing
        opt.step(problem.closure(opt, i), i)
        order.append(i)
        active.append(opt.stats.active)
        rejected.append(opt.stats.rejected)
    assert order[:4] == [0, 0, 1, 1]
    assert active[0] == 2
    assert active == sorted(active)
    assert active[-1] == 8
    first = {i: order.index(i) for i in range(8)}
    for i, k in first.items():  # a rejection has evaluated it twice already
        assert order[k + 1] == i or rejected[k] > rejected[k - 1]


def test_cyclic_order_takes_turns():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8, order="cyclic")
    problem.run(opt, range(80))
    order = []
    for _ in range(16):
        order.append(opt.next_index())
        opt.step(problem.closure(opt, order[-1]), order[-1])
    assert sorted(order[:8]) == list(range(8))
    assert order[:8] == order[8:]


# ---------------------------------------------------------------------- minimizing


@pytest.mark.parametrize("n", [20, 200], ids=["whole-space", "collapsing"])
@pytest.mark.parametrize("order", ["distance", "cyclic", "loader"])
def test_a_sum_of_convex_quadratics_is_minimized(n, order):
    problem = Quadratics(n=n)
    opt = SFO(problem.model.parameters(), batches=8, order="distance" if order == "loader" else order)
    problem.run(opt, range(20 * 8), order=(lambda k: k % 8) if order == "loader" else None)
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-6


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_the_loss_does_not_matter(scale):
    problem = Quadratics(n=50, scale=scale)
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(20 * 8))
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-6


def test_float32_reaches_the_minimum_but_for_rounding():
    problem = Quadratics(n=200, dtype=torch.float32)
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(20 * 8))
    assert problem.model.vector().dtype == torch.float32
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-4


def test_a_single_minibatch_is_plain_quasi_newton():
    problem = Quadratics(batches=1)
    opt = SFO(problem.model.parameters(), batches=1)
    problem.run(opt, range(150))
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-6


def test_the_valley_of_rosenbrock_is_followed_to_its_end():
    w = nn.Parameter(torch.tensor([-1.2, 1.0, -1.2, 1.0], dtype=torch.float64))
    opt = SFO([w], batches=2)
    for _ in range(200):
        i = opt.next_index()

        def closure(i=i):
            opt.zero_grad()
            loss = (100.0 * (w[1::2] - w[::2] ** 2).square() if i == 0 else (1.0 - w[::2]).square()).sum()
            loss.backward()
            return loss

        opt.step(closure, i)
    assert float((w.detach() - 1.0).norm()) < 1e-4
    assert opt.stats.rejected > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_small_network_learns(dtype):
    x = torch.randn(500, 6, dtype=dtype)
    target = torch.sin(x @ torch.randn(6, 2, dtype=dtype))
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)).to(dtype)
    opt = SFO(net.parameters(), batches=10)
    xs, targets = x.chunk(10), target.chunk(10)

    def mean_loss() -> float:
        with torch.no_grad():
            return float((net(x) - target).square().mean())

    start = mean_loss()
    for _ in range(200):
        i = opt.next_index()

        def closure(i=i):
            opt.zero_grad()
            loss = (net(xs[i]) - targets[i]).square().mean()
            loss.backward()
            return loss

        opt.step(closure, i)
    assert mean_loss() < 0.4 * start
    assert opt.stats.collapses > 0


def test_maximize_mirrors_minimize():
    down, up = Quadratics(), Quadratics()
    a = SFO(down.model.parameters(), batches=8)
    b = SFO(up.model.parameters(), batches=8, maximize=True)
    assert torch.equal(down.run(a, range(40)), up.run(b, range(40), sign=-1.0))


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("blow", [math.nan, math.inf])
def test_a_minibatch_that_is_not_finite_is_skipped_and_counted(blow):
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(30))
    before, weights, stats = copy.deepcopy(opt.state_dict()["state"][0]), problem.model.vector(), opt.stats
    i = opt.next_index()
    opt.step(problem.closure(opt, i, blow=blow), i)
    assert torch.equal(problem.model.vector(), weights)
    assert opt.stats.nonfinite == 1
    assert opt.stats.steps == stats.steps
    assert opt.next_index() != i  # another first
    for name, value in opt.state_dict()["state"][0].items():
        if name not in ("nonfinite", "nonfinite_in_row", "barred_since"):
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[name])), name
    problem.run(opt, range(130))
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-6


def test_one_minibatch_that_is_never_finite_does_not_stop_the_others():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    for _ in range(170):
        i = opt.next_index()
        opt.step(problem.closure(opt, i, blow=math.nan if i == 1 else 1.0), i)
    A = [A for i, A in enumerate(problem.A) if i != 1]
    c = [c for i, c in enumerate(problem.c) if i != 1]
    minimum = torch.linalg.solve(sum(A), sum(a @ b for a, b in zip(A, c, strict=True)))
    assert relative_error(problem.model.vector(), minimum) < 1e-6
    assert 0 < opt.stats.nonfinite < 60


def one_weight(loss_of, start: float, steps: int, **options) -> tuple[SFO, list[float]]:
    w = nn.Parameter(torch.tensor([start], dtype=torch.float64))
    opt, path = SFO([w], batches=2, **options), [start]
    for _ in range(steps):
        i = opt.next_index()

        def closure():
            opt.zero_grad()
            loss = loss_of(w).sum()
            loss.backward()
            return loss

        opt.step(closure, i)
        path.append(float(w.detach()))
    return opt, path


def test_a_step_beyond_the_domain_is_taken_back():
    """−log(w) + 4w leaves its domain when the curvature is underestimated by far."""
    opt, path = one_weight(lambda w: -torch.log(w) + 4.0 * w, 2.0, 80, initial_curvature=1.0)
    assert opt.stats.nonfinite >= 3
    assert path[1] < 0.0
    assert opt.stats.rejected >= 1
    assert abs(path[-1] - 0.25) < 1e-6


def test_a_bad_update_halves_the_step_and_goes_back():
    """½w² with an initial curvature of 0.4: the first step goes 2.5 times as far as it should."""
    opt, path = one_weight(lambda w: 0.5 * w**2, 2.0, 2, initial_curvature=0.4)
    assert math.isclose(path[1], -3.0)
    assert opt.stats.rejected == 1
    assert opt.stats.step_scale == 0.5
    assert opt.stats.evaluations == opt.stats.steps + 1
    assert math.isclose(path[2], 1.0)  # half a Newton step, with the curvature now known, from where it was before
    opt, path = one_weight(lambda w: 0.5 * w**2, 2.0, 30, initial_curvature=0.4)
    assert abs(path[-1]) < 1e-6
    assert opt.stats.step_scale > 0.99


def test_an_exploded_value_is_not_remembered():
    """cosh at the end of the first step is 1e5 times its value before: the history gets a nearer point."""
    opt, path = one_weight(lambda w: torch.cosh(4.0 * w), 0.2, 2, initial_curvature=0.5)
    assert math.cosh(4.0 * path[1]) > 1e5
    assert opt.stats.evaluations > opt.stats.steps + 1
    assert float(sfo_state(opt).model.losses.max()) < 2.0
    opt, path = one_weight(lambda w: torch.cosh(4.0 * w), 0.2, 60, initial_curvature=0.5)
    assert abs(path[-1]) < 1e-6


HUGE_AT = [(at, torch.float32) for at in (0, 1, 2, 6, 30)] + [(3, torch.float64)]


@pytest.mark.parametrize("at, dtype", HUGE_AT)
def test_it_returns_after_one_huge_gradient(at, dtype):
    """Finite, but of 1e30 at a loss like any other: its minibatch, or its models if they led nowhere, begin anew."""
    problem = Quadratics(dtype=dtype)
    opt = SFO(problem.model.parameters(), batches=8)
    start = problem.model.vector().double()
    for k in range(160):
        i = opt.next_index()
        usual, spoilt = problem.closure(opt, i), [k == at]

        def closure(usual=usual, spoilt=spoilt):
            loss = usual()
            if spoilt.pop() if spoilt else False:
                for p in problem.model.parameters():
                    p.grad.mul_(1e30)
            return loss

        opt.step(closure, i)
    distance = (problem.model.vector().double() - problem.minimum).norm()
    assert distance < 0.05 * (start - problem.minimum).norm()


def test_gradients_that_losses_belie_make_no_pair():
    model = SumModel(2, 4, 3, 1.0, 1e8, 1e-16)
    s, g = torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    model.record(0, 0.0 * s, 1.0, g)
    assert not model.contradicted(0, s, 1.0 + 4.0 + 2.0, 2.0 * g)  # ½ s·y = 2, as the losses say
    assert model.contradicted(0, s, 5.0, 1e30 * g)
    model.record(0, s, 5.0, 1e30 * g)
    assert int(model.pairs[0]) == 0


def test_an_error_in_the_closure_leaves_everything_as_it_was():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(20))
    weights, stats = problem.model.vector(), opt.stats

    def broken():
        raise KeyError("no data")

    with pytest.raises(KeyError, match="no data"):
        opt.step(broken, 0)
    assert torch.equal(problem.model.vector(), weights)
    assert opt.stats == stats


def test_gradients_of_zero_do_no_harm():
    w = nn.Parameter(torch.ones(5))
    opt = SFO([w], batches=3)
    for k in range(12):
        opt.step(lambda: (opt.zero_grad(), (0.0 * w).sum().backward(), 1.0)[-1], k % 3)
    assert torch.equal(w.detach(), torch.ones(5))


def test_nothing_but_gradients_of_zero_from_the_first_step_on():
    """The subspace has no direction yet."""
    w = nn.Parameter(torch.zeros(40))
    opt = SFO([w], batches=2)

    def closure():
        w.grad = torch.zeros(40)
        return torch.ones(())

    for _ in range(5):
        opt.step(closure, opt.next_index())
    assert opt.stats.steps == 5
    assert torch.equal(w.detach(), torch.zeros(40))


def test_weights_changed_from_outside_are_taken_as_they_are():
    problem = Quadratics(n=100)
    opt = SFO(problem.model.parameters(), batches=8)
    for _ in range(3):
        problem.run(opt, range(40))
        with torch.no_grad():
            for p in problem.model.parameters():
                p.add_(torch.randn_like(p))
    problem.run(opt, range(150))
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-6


def test_lr_zero_stays_and_a_scheduler_is_heard():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8, lr=0.0)
    weights = problem.model.vector()
    problem.run(opt, range(10))
    assert torch.equal(problem.model.vector(), weights)
    opt.param_groups[0]["lr"] = 1.0
    problem.run(opt, range(150))
    assert relative_error(problem.model.vector(), problem.minimum) < 1e-6


# ---------------------------------------------------------------------- state


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("n, dtype", [(20, torch.float64), (100, torch.float64), (100, torch.float32)])
def test_resume_is_bit_for_bit(n, dtype):
    """Also through rejections and collapses, and right after a skipped minibatch."""
    bad, after = (1, 6, 26, 28, 52), 12

    def go_on(problem, opt, steps):
        path = []
        for k in steps:
            if k in bad:
                opt.step(problem.closure(opt, 3, blow=math.nan), 3)
            else:
                problem.run(opt, range(1))
            path.append(problem.model.vector().clone())
        return torch.stack(path)

    problem, saved, path = Quadratics(n=n, dtype=dtype), [], []
    opt = SFO(problem.model.parameters(), batches=8)
    for k in range(bad[-1] + 1 + after):
        if k - 1 in bad:
            saved.append((k, *map(saved_and_loaded, (problem.model.state_dict(), opt.state_dict())), opt.stats))
        path.append(go_on(problem, opt, range(k, k + 1)))
    for k, weights, state, stats in saved:
        twin = Quadratics(n=n, dtype=dtype)
        twin.model.load_state_dict(weights)
        other = SFO(twin.model.parameters(), batches=8)
        other.load_state_dict(state)
        assert other.stats == stats
        assert torch.equal(go_on(twin, other, range(k, k + after)), torch.cat(path[k : k + after]))
    assert other.stats == opt.stats  # both are at the end


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_its_own_way_and_the_same_way(copier):
    problem = Quadratics(n=100)
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(40))
    twin, other = copier((problem, opt))
    assert torch.equal(problem.run(opt, range(20)), twin.run(other, range(20)))
    assert opt.stats == other.stats


def test_state_is_tensors_and_plain_numbers_by_parameter():
    problem = Quadratics(n=100)
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(20))
    state = opt.state_dict()["state"]
    assert set(state) == {0, 1, 2}
    for entry, p in zip(state.values(), problem.model.parameters(), strict=True):
        assert entry["basis"].shape == (27, *p.shape)
        assert all(type(value) in (int, float) or isinstance(value, Tensor) for value in entry.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [20, 100])
def test_state_is_as_large_as_announced(dtype, n):
    problem = Quadratics(n=n, dtype=dtype)
    opt = SFO(problem.model.parameters(), batches=8)
    announced = opt.state_size()
    problem.run(opt, range(20))
    tensors = [t for entry in opt.state_dict()["state"].values() for t in entry.values() if isinstance(t, Tensor)]
    assert announced == sum(t.numel() * t.element_size() for t in tensors) == opt.state_size()


def test_a_state_that_does_not_fit_changes_nothing():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(20))
    state, stats = opt.state_dict(), opt.stats
    for options, message in (
        ({"batches": 5}, "batches and history_size"),
        ({"batches": 8, "history_size": 3}, "shape"),
    ):
        other = SFO(problem.model.parameters(), **options)
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
        assert other.stats.steps == 0
    adam = torch.optim.Adam(problem.model.parameters())
    adam.step()
    with pytest.raises(ValueError, match="not saved by this SFO"):
        opt.load_state_dict(adam.state_dict())
    assert opt.stats == stats


# ---------------------------------------------------------------------- misuse and kinds of parameters


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"batches": 0}, ValueError, "batches must be at least 1, got 0"),
        ({"batches": 2.5}, TypeError, "batches must be a whole number"),
        ({"history_size": 0}, ValueError, "history_size must be at least 1"),
        ({"initial_active": 0}, ValueError, "initial_active"),
        ({"initial_curvature": 0.0}, ValueError, "initial_curvature must be a finite number above 0, got 0.0"),
        ({"initial_curvature": "big"}, TypeError, "initial_curvature must be a number"),
        ({"max_condition": 1.0}, ValueError, "max_condition must be a finite number above 1"),
        ({"max_step_ratio": math.inf}, ValueError, "max_step_ratio"),
        ({"min_step": -1.0}, ValueError, "min_step must be a finite number of at least 0, got -1.0"),
        ({"min_kept": 1.5}, ValueError, "min_kept must be at most 1"),
        ({"max_gradient_noise": math.nan}, ValueError, "max_gradient_noise"),
        ({"order": "random"}, ValueError, "order must be one of"),
        ({"lr": -1.0}, ValueError, "lr must be a finite number of at least 0, got -1.0"),
    ],
)
def test_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        SFO([nn.Parameter(torch.ones(3))], **{"batches": 4, **options})


def test_step_says_what_it_needs():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    with pytest.raises(TypeError, match="needs a closure"):
        opt.step()
    with pytest.raises(TypeError, match="no index"):
        opt.step(problem.closure(opt, 0))
    with pytest.raises(IndexError, match="0 to 7 with batches=8, got 8"):
        opt.step(problem.closure(opt, 0), 8)
    with pytest.raises(RuntimeError, match="must call backward"):
        opt.step(lambda: torch.tensor(1.0), 0)
    with pytest.raises(TypeError, match="must return the loss"):
        opt.step(lambda: None, 0)
    assert opt.stats.steps == 0


def test_the_loss_of_the_closure_comes_back():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    expected = problem.closure(opt, 0)()
    assert torch.equal(opt.step(problem.closure(opt, 0), 0), expected)


def test_groups_share_their_lr():
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    opt = SFO([{"params": [a]}, {"params": [b], "lr": 0.5}], batches=2)
    with pytest.raises(ValueError, match=r"one finite lr, got \[0.5, 1.0\]"):
        opt.step(lambda: 1.0, 0)


def test_parameters_it_cannot_work_with_are_refused():
    with pytest.raises(ValueError, match="bfloat16 rounds away"):
        SFO([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], batches=2)
    with pytest.raises(ValueError, match="several devices"):
        SFO([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))], batches=2)
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        SFO([nn.Parameter(torch.ones(2), requires_grad=False)], batches=2)
    embedding = nn.Embedding(5, 2, sparse=True)
    opt = SFO(embedding.parameters(), batches=2)
    with pytest.raises(RuntimeError, match="sparse gradient"):
        opt.step(lambda: (embedding(torch.tensor([1])).sum().backward(), 1.0)[-1], 0)


def test_other_parameters_than_before_are_refused():
    problem = Quadratics()
    opt = SFO(problem.model.parameters(), batches=8)
    problem.run(opt, range(3))
    with pytest.raises(RuntimeError, match="after its first step"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    problem.model.pieces[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="build a new one"):
        opt.step(problem.closure(opt, 0), 0)


def test_complex_parameters_are_pairs_of_reals():
    z = nn.Parameter(torch.randn(5, dtype=torch.complex128))
    x = nn.Parameter(torch.view_as_real(z.detach()).clone())
    targets = torch.randn(3, 5, 2, dtype=torch.float64)
    a, b = SFO([z], batches=3), SFO([x], batches=3)
    for k in range(30):

        def closure(opt, real, k=k):
            opt.zero_grad()
            loss = (real() - targets[k % 3]).pow(4).sum()
            loss.backward()
            return loss

        a.step(lambda: closure(a, lambda: torch.view_as_real(z)), k % 3)
        b.step(lambda: closure(b, lambda: x), k % 3)
    assert torch.equal(torch.view_as_real(z.detach()), x.detach())
    assert a.stats == b.stats
