"""The parts of Hessian-free optimization against dense matrices, in float64."""

import math

import pytest
import torch
from dense_gauss_newton import dense, dense_gauss_newton, dense_jacobian, joined, split
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from adaqn.baselines.closures import Replay, forward_mode_jvp
from adaqn.baselines.conjugate_gradients import Stop, conjugate_gradients, has_stalled, window
from adaqn.baselines.gauss_newton import GaussNewton, diagonal_preconditioner, fisher_diagonal
from adaqn.baselines.step_control import adjusted_damping, armijo, best_iterate, reduction_ratio
from oracles import random_spd, relative_error

N, T, INPUTS, CLASSES = 4, 3, 2, 3


class Net(nn.Module):
    """An MLP, or a recurrent net that is read off at every step; remembers its hidden states."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        hidden = 3
        if kind == "mlp":
            self.body: nn.Module = nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh())
        else:
            self.body = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind](INPUTS, hidden, batch_first=True)
        self.kind = kind
        self.readout = nn.Linear(hidden, CLASSES)
        self.double()

    def forward(self, x):
        hidden = self.body(x)
        self.hidden = hidden if self.kind == "mlp" else hidden[0]
        return self.readout(self.hidden)


LOSSES = {
    "mse": lambda out, y: mse_loss(out, one_hot(y, CLASSES).double()),
    "cross_entropy": lambda out, y: cross_entropy(out.reshape(-1, CLASSES), y.reshape(-1)),
}
KINDS = pytest.mark.parametrize("kind", ["mlp", "rnn", "gru", "lstm"])
LOSS_NAMES = pytest.mark.parametrize("loss_name", LOSSES)


def case(kind, loss_name):
    """The net, its closure, and a batch."""
    net, loss_fn = Net(kind), LOSSES[loss_name]
    shape = (N,) if kind == "mlp" else (N, T)
    x, y = torch.randn(*shape, INPUTS, dtype=torch.float64), torch.randint(CLASSES, shape)

    def closure():
        outputs = net(x)
        return loss_fn(outputs, y), outputs, net.hidden

    return net, closure, loss_fn, x, y


@KINDS
@LOSS_NAMES
@pytest.mark.parametrize("forward_mode", [False, True], ids=["double_backward", "forward_mode"])
def test_gauss_newton_is_its_explicit_matrix(kind, loss_name, forward_mode):
    net, closure, loss_fn, _, y = case(kind, loss_name)
    params = list(net.parameters())
    replay = Replay(closure, params[0].device)
    batch = replay.with_graph()
    jvp = forward_mode_jvp(replay, net, params, hidden=False) if forward_mode else None
    G = GaussNewton(batch.loss, batch.outputs, params, jvp=jvp)
    expected = dense_gauss_newton(batch.outputs[0], loss_fn, y, params)
    assert relative_error(dense(G.product, params), expected) < 1e-12
    v = torch.randn(len(expected), dtype=torch.float64)
    assert math.isclose(G.quadratic(split(v, params)), float(v @ expected @ v), rel_tol=1e-10)


@KINDS
@LOSS_NAMES
def test_gauss_newton_is_that_of_curvlinops(kind, loss_name):
    curvlinops = pytest.importorskip(
        "curvlinops", reason="NO ORACLE: pip install --no-deps curvlinops-for-pytorch einops einconv linear_operator"
    )
    net, closure, _, x, y = case(kind, loss_name)
    params = list(net.parameters())
    loss, outputs, _ = closure()
    target = y.reshape(-1) if loss_name == "cross_entropy" else one_hot(y, CLASSES).double()
    flat = (lambda out: out.reshape(-1, CLASSES)) if loss_name == "cross_entropy" else (lambda out: out)

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, inputs):
            return flat(self.net(inputs))

    criterion = nn.CrossEntropyLoss() if loss_name == "cross_entropy" else nn.MSELoss()
    theirs = curvlinops.GGNLinearOperator(Flat(), criterion, params, [(x, target)], check_deterministic=False)
    G = GaussNewton(loss, [outputs], params)
    v = torch.randn(sum(p.numel() for p in params), dtype=torch.float64)
    assert relative_error(joined(G.product(split(v, params))), joined([theirs @ v])) < 1e-10


@pytest.mark.parametrize("forward_mode", [False, True], ids=["double_backward", "forward_mode"])
@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_structural_damping_is_its_explicit_matrix(kind, forward_mode):
    net, closure, loss_fn, _, y = case(kind, "cross_entropy")
    params = list(net.parameters())
    replay = Replay(closure, params[0].device)
    batch = replay.with_graph()
    jvp = forward_mode_jvp(replay, net, params, hidden=True) if forward_mode else None
    G = GaussNewton(batch.loss, batch.outputs, params, batch.hidden, jvp)
    J = dense_jacobian(batch.hidden[0], params)
    expected = dense_gauss_newton(batch.outputs[0], loss_fn, y, params) + 0.3 * J.T @ J
    assert relative_error(dense(lambda v: G.product(v, 0.3), params), expected) < 1e-12
    assert relative_error(dense(G.product, params), expected - 0.3 * J.T @ J) < 1e-12


def test_several_outputs_share_one_loss_hessian():
    """H_L has blocks between outputs; here the loss is a product of the two."""
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    a, b = w[:2].sum(), (w * w).sum()
    G = GaussNewton((a * b).exp(), [a, b], [w])
    J = torch.stack([dense_jacobian(a, [w])[0], dense_jacobian(b, [w])[0]])
    both = torch.stack([a, b]).detach()
    H = torch.autograd.functional.hessian(lambda out: out.prod().exp(), both)
    assert relative_error(dense(G.product, [w]), J.T @ H @ J) < 1e-12


def test_a_loss_linear_in_its_outputs_has_no_curvature():
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    out = w * w
    assert not GaussNewton(out.sum(), [out], [w]).product([torch.ones(3, dtype=torch.float64)])[0].any()


@pytest.mark.parametrize("kind", ["mlp", "rnn"])
def test_fisher_diagonal_is_the_mean_of_squared_gradients_per_example(kind):
    net, closure, loss_fn, x, y = case(kind, "cross_entropy")
    params = list(net.parameters())
    loss, outputs, _ = closure()
    each = [joined(torch.autograd.grad(loss_fn(net(x[i : i + 1]), y[i : i + 1]), params)) for i in range(N)]
    expected = torch.stack(each).square().mean(0)
    G = GaussNewton(loss, [outputs], params)
    generator = torch.Generator().manual_seed(0)
    estimate = joined(fisher_diagonal(G.slope, G.outputs, params, draws=800, generator=generator))
    assert relative_error(estimate, expected) < 0.1


def test_preconditioner_has_an_inverse_even_without_gradient_or_damping():
    assert torch.equal(diagonal_preconditioner(torch.zeros(3), 0.0), torch.ones(3))
    assert diagonal_preconditioner(torch.tensor([1.0, 0.0]), 0.0).min() > 0.0


# ---------------------------------------------------------------------- conjugate gradients


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_conjugate_gradients_solve(preconditioned, started):
    A, b = random_spd(40), torch.randn(40, dtype=torch.float64)
    A = A * torch.logspace(-1, 1, 40, dtype=torch.float64).outer(torch.logspace(-1, 1, 40, dtype=torch.float64))
    before = b.clone()
    start = torch.linalg.solve(A, b) + 0.01 if started else None
    M = A.diagonal().clone() if preconditioned else None
    solution = conjugate_gradients(A.mv, b, start, preconditioner=M, tolerance=0.0, max_iterations=2000)
    assert relative_error(solution.x, torch.linalg.solve(A, b)) < 1e-9
    assert solution.stop is Stop.SOLVED
    assert torch.equal(b, before)


def test_kept_iterates_are_spaced_and_know_their_phi():
    A, b = random_spd(60), torch.randn(60, dtype=torch.float64)
    solution = conjugate_gradients(A.mv, b, tolerance=0.0, max_iterations=30)
    assert solution.counts == [5, 7, 9, 11, 15, 19, 25, 30]
    for x, phi in zip(solution.iterates, solution.phi, strict=True):
        assert math.isclose(phi, float(0.5 * x @ A @ x - b @ x), rel_tol=1e-9)
    assert solution.phi == sorted(solution.phi, reverse=True)


def test_stopping_rule_is_martens():
    """i > k, φ < 0 and (φ_i − φ_{i−k})/φ_i < kε with k = max(10, 0.1 i)."""
    assert [window(i) for i in (1, 100, 101, 200)] == [10, 10, 11, 20]
    phi = [-1.0] * 10 + [-1.0 / (1.0 - 10 * 5e-4 * 1.001)]
    assert not has_stalled([*phi[:10], phi[10]], 5e-4)  # i = 10 = k: too early
    assert not has_stalled([-1.0, *phi[:10], phi[10]], 5e-4)  # a little more progress than kε
    assert has_stalled([-1.0, *phi[:10], -1.0 / (1.0 - 10 * 5e-4 * 0.999)], 5e-4)
    assert not has_stalled([1.0] * 12, 5e-4)  # worse than zero: go on


def test_stopping_rule_stops_early_and_min_iterations_delays_it():
    A, b = random_spd(200), torch.randn(200, dtype=torch.float64)
    short = conjugate_gradients(A.mv, b)
    assert short.stop is Stop.PROGRESS
    assert 10 < short.iterations < 100
    assert conjugate_gradients(A.mv, b, min_iterations=short.iterations + 7).iterations == short.iterations + 7
    best = float(-0.5 * b @ torch.linalg.solve(A, b))
    assert best <= short.phi[-1] < 0.95 * best


def test_a_start_worse_than_zero_is_dropped():
    A, b = random_spd(10), torch.randn(10, dtype=torch.float64)
    bad = -100.0 * torch.linalg.solve(A, b)
    assert torch.equal(
        conjugate_gradients(A.mv, b, bad, max_iterations=3).x, conjugate_gradients(A.mv, b, max_iterations=3).x
    )


@pytest.mark.parametrize("broken", [lambda v: -v, lambda v: v * math.nan, lambda v: v * math.inf])
def test_negative_or_non_finite_curvature_ends_it_with_a_finite_iterate(broken):
    solution = conjugate_gradients(broken, torch.ones(4), torch.ones(4))
    assert solution.x.isfinite().all()
    assert solution.stop is Stop.CURVATURE


# ---------------------------------------------------------------------- step control


def test_backtracking_over_iterates_goes_back_while_the_loss_falls():
    steps = [torch.tensor(float(i)) for i in range(6)]
    losses = [0.0, 5.0, 2.0, 1.0, 3.0, math.inf]  # the 0 behind the hill is never seen
    assert best_iterate(steps, lambda s: losses[int(s)]) == (3, 1.0)
    assert best_iterate(steps[:1], lambda s: 7.0) == (0, 7.0)


def test_line_search_gives_up_on_a_slope_that_does_not_descend():
    assert armijo(lambda t: -t, 0.0, 1.0, -1.0) == (0.0, 0.0)
    assert armijo(lambda t: math.inf, 1.0, -1.0, math.inf) == (0.0, 1.0)


def test_damping_rule():
    assert reduction_ratio(math.nan, -1.0) == -math.inf
    assert adjusted_damping(1.0, 0.76, 2 / 3) == 2 / 3
    assert adjusted_damping(1.0, 0.24, 2 / 3) == 1.5
    assert adjusted_damping(1.0, -math.inf, 2 / 3) == 1.5
    assert adjusted_damping(1.0, 0.25, 2 / 3) == adjusted_damping(1.0, 0.75, 2 / 3) == 1.0
    assert adjusted_damping(0.0, -1.0, 2 / 3) == 0.0
    assert adjusted_damping(1e10, -1.0, 2 / 3) == 1e10
    assert adjusted_damping(1e-10, 1.0, 2 / 3) == 1e-10
    assert adjusted_damping(1e-12, 1.0, 2 / 3) == 1e-12  # a smaller one of the user's own stays
