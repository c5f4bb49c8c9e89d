"""Full matrices against the printed formulas as dense matrices, and what every update must keep."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from adaqn.core import full_matrix
from adaqn.core.full_matrix import UPDATES, affordable, along_the_line, from_operator, identity, update_
from adaqn.core.kronecker import Kronecker
from oracles import DenseScaling, dense_bfgs, dense_kronecker, random_spd, relative_error

EVERY = pytest.mark.parametrize("name", sorted(UPDATES))
SCALED = pytest.mark.parametrize("name", ["ssbfgs", "ssbroyden"])
SIZES, SEEDS = st.integers(2, 12), st.integers(0, 10**6)
LOGS = st.floats(-3, 3)


def problem(n, seed, length=0.0, curvature=0.0):
    """A matrix H, and a step along −Hg on a parabola: s = −tHg and y = As, with s·H⁻¹s as a line search knows it."""
    generator = torch.Generator().manual_seed(seed)
    H, A = random_spd(n, generator), 10.0**curvature * random_spd(n, generator)
    g = torch.randn(n, dtype=torch.float64, generator=generator)
    t, d = 10.0**length, -(H @ g)
    return H, t * d, t * (A @ d), along_the_line(t, float(g @ d))


def printed_numbers(H, s, y, name):
    """τ, φ and θ of Urbán, Stefanou and Pons, eq. 11 to 23, with H⁻¹ as a matrix."""
    n, sy = len(H), s @ y
    b, h = s @ torch.linalg.solve(H, s) / sy, y @ H @ y / sy
    tau_1 = torch.clamp(1 / b, max=1.0)  # eq. 11
    if name != "ssbroyden":
        return (1.0 if name == "bfgs" else tau_1), 1.0, 0.0
    a = h * b - 1
    c = torch.sqrt(a / (1 + a))
    rho_minus = torch.clamp(h * (1 - c), max=1.0)
    theta_minus, theta_plus = (rho_minus - 1) / a, 1 / rho_minus
    theta = torch.maximum(theta_minus, torch.minimum(theta_plus, (1 - b) / b))
    sigma = 1 + theta * a
    phi = (1 - theta) / (1 + a * theta)
    if theta > 0:
        tau = tau_1 * torch.minimum(sigma ** (-1 / (n - 1)), 1 / theta)
    else:
        tau = torch.minimum(tau_1 * sigma ** (-1 / (n - 1)), sigma)
    return tau, phi, theta


def printed(H, s, y, tau, phi):
    Hy = H @ y
    v = torch.sqrt(y @ Hy) * (s / (y @ s) - Hy / (y @ Hy))
    return (H - torch.outer(Hy, Hy) / (y @ Hy) + phi * torch.outer(v, v)) / tau + torch.outer(s, s) / (y @ s)


@EVERY
@given(SIZES, SEEDS, LOGS, LOGS)
def test_equals_the_printed_formula(name, n, seed, length, curvature):
    H, s, y, s_inverse_s = problem(n, seed, length, curvature)
    tau, phi, _ = printed_numbers(H, s, y, name)
    expected = printed(H, s, y, tau, phi)
    assert update_(H, s, y, UPDATES[name], s_inverse_s)
    assert relative_error(H, expected) < 1e-7


def test_all_branches_of_the_printed_formula_were_compared():
    """θ of both signs, at both bounds and between them, and curvature above and below that of H."""
    seen = set()
    for seed in range(300):
        H, s, y, s_inverse_s = problem(4, seed, 0.0, (-2.0, -0.3, 0.0, 0.3, 2.0)[seed % 5])
        tau, phi, theta = printed_numbers(H, s, y, "ssbroyden")
        b, h = s_inverse_s / float(s @ y), float(y @ H @ y) / float(s @ y)
        assert full_matrix.ssbroyden(b, h, 4) == pytest.approx((float(tau), float(phi)), rel=1e-7)
        asked = (1 - b) / b
        where = "inside" if float(theta) == pytest.approx(asked) else "lower" if theta > asked else "upper"
        seen |= {where, "b > 1" if b > 1.0 else "b < 1", "θ > 0" if theta > 0 else "θ ≤ 0"}
    assert seen == {"inside", "lower", "upper", "b > 1", "b < 1", "θ > 0", "θ ≤ 0"}


@given(SIZES, SEEDS, st.integers(1, 6))
def test_bfgs_is_the_bfgs_formula_pair_by_pair(n, seed, count):
    H, *_ = problem(n, seed)
    pairs = [problem(n, seed + 1 + k)[1:3] for k in range(count)]
    expected = dense_bfgs([s for s, _ in pairs], [y for _, y in pairs], H)
    for s, y in pairs:
        assert update_(H, s, y, full_matrix.bfgs, 1.0)
    assert relative_error(H, expected) < 1e-9


@EVERY
@pytest.mark.parametrize("first", [False, True])
@given(SIZES, SEEDS, LOGS, LOGS)
def test_stays_symmetric_and_positive_definite_and_meets_the_secant_equation(name, first, n, seed, length, curvature):
    H, s, y, s_inverse_s = problem(n, seed, length, curvature)
    assert update_(H, s, y, UPDATES[name], s_inverse_s, first=first)
    assert relative_error(H.T, H) < 1e-14
    assert float(torch.linalg.eigvalsh(H).min()) > 0.0
    assert relative_error(H @ y, s) < 1e-7


@EVERY
def test_hundreds_of_updates_do_not_lose_symmetry_or_definiteness(name):
    """Gradient steps on a parabola whose curvatures span six decades, with a search that is exact."""
    torch.manual_seed(1)
    n = 30
    A = torch.diag(torch.logspace(0, 6, n, dtype=torch.float64))
    w, H = torch.randn(n, dtype=torch.float64), identity(n)
    least = float(w @ A @ w)
    for k in range(300):
        g = A @ w
        d = -(H @ g)
        t = float(-(g @ d) / (d @ A @ d)) * (0.5 if k % 7 == 3 else 1.0)
        if not update_(H, t * d, t * (A @ d), UPDATES[name], along_the_line(t, float(g @ d)), first=k == 0):
            break  # at the minimum, to the last digit
        w = w + t * d
    assert k > 30
    assert relative_error(H.T, H) < 1e-12
    assert float(torch.linalg.eigvalsh((H + H.T) / 2).min()) > 0.0
    assert float(w @ A @ w) < 1e-20 * least


@EVERY
@given(SIZES, SEEDS, LOGS, LOGS)
def test_the_first_pair_forgets_the_scale_of_the_matrix_it_began_from(name, n, seed, length, curvature):
    """A step of the same length in the weights: H₊ is the same from H and from a million times H."""
    H, s, y, s_inverse_s = problem(n, seed, length, curvature)
    scaled = 1e6 * H
    assert update_(H, s, y, UPDATES[name], s_inverse_s, first=True)
    assert update_(scaled, s, y, UPDATES[name], s_inverse_s / 1e6, first=True)
    if name != "ssbroyden":  # whose θ depends on the scale
        assert relative_error(scaled, H) < 1e-9
    assert float(scaled.norm()) < 1e3 * float(H.norm())


def test_the_first_pair_of_bfgs_gives_gamma_of_lbfgs():
    _, s, y, _ = problem(5, 0)
    H, gamma = identity(5), float(s @ y / (y @ y))
    update_(H, s, y, full_matrix.bfgs, float(s @ s), first=True)
    assert relative_error(H, dense_bfgs([s], [y], gamma * identity(5))) < 1e-12


@SCALED
@given(SIZES, SEEDS, LOGS)
def test_a_matrix_that_was_too_small_grows_as_a_whole(name, n, seed, length):
    """H of a thousandth of the right size: BFGS corrects one direction, self-scaling all others with it."""
    H, s, _, s_inverse_s = problem(n, seed, length)
    y = 1e-3 * torch.linalg.solve(H, s)
    plain, scaled = H.clone(), H.clone()
    update_(plain, s, y, full_matrix.bfgs, s_inverse_s)
    update_(scaled, s, y, UPDATES[name], s_inverse_s)
    assert relative_error(scaled, 1e3 * H) < 1e-6
    other = torch.linalg.qr(s[:, None], mode="complete").Q[:, 1]  # orthogonal to s
    assert float(other @ plain @ other) == pytest.approx(float(other @ H @ other), rel=1e-6)


@SCALED
def test_one_weight_is_newtons_method(name):
    H = torch.tensor([[2.0]], dtype=torch.float64)
    s, y = torch.tensor([3.0], dtype=torch.float64), torch.tensor([1.5], dtype=torch.float64)
    assert update_(H, s, y, UPDATES[name], 4.5)
    assert float(H) == pytest.approx(2.0)


@given(st.floats(-12, 12), st.floats(0, 16))
def test_the_numbers_of_ssbroyden_stay_positive_definite_at_any_scale(log_b, log_bh):
    """φ > −1/a is what definiteness needs; b·h ≥ 1 is Cauchy and Schwarz's."""
    b = 10.0**log_b
    h = 10.0**log_bh / b
    a = max(b * h - 1.0, 0.0)
    tau, phi = full_matrix.ssbroyden(b, h, 50)
    assert 0.0 < tau <= 1.0
    assert math.isfinite(phi)
    assert 1.0 + a * phi > 0.0


def in_sixty_digits(b, h, n):
    """θ, σ, τ and φ as printed, where differences may cost forty digits."""
    with localcontext() as context:
        context.prec = 60
        b, h = Decimal(b), Decimal(h)
        a = h * b - 1
        rho = min(Decimal(1), h * (1 - (a / (1 + a)).sqrt()))
        theta = max((rho - 1) / a, min(1 / rho, (1 - b) / b))
        sigma, tau = 1 + theta * a, min(Decimal(1), 1 / b)
        root = sigma ** (Decimal(-1) / (n - 1))
        tau = tau * min(root, 1 / theta) if theta > 0 else min(tau * root, sigma)
        return float(h / sigma), float(tau), float((1 - theta) / sigma)


@given(st.floats(-12, 12), st.floats(0.01, 16), st.integers(2, 1000))
def test_the_numbers_of_ssbroyden_keep_their_digits_at_any_scale(log_b, log_bh, n):
    b = 10.0**log_b
    h = 10.0**log_bh / b
    first, tau, phi = in_sixty_digits(b, h, n)
    assert full_matrix.ssbroyden(b, h, n) == pytest.approx((tau, phi), rel=1e-9)
    assert full_matrix.ssbroyden(b, h, n, True) == pytest.approx((first, phi), rel=1e-9)


@pytest.mark.parametrize("b", [0.25, 1.0, 4.0])
def test_a_pair_in_the_direction_of_h_is_the_limit_of_others(b):
    assert full_matrix.ssbroyden(b, 1.0 / b, 5) == pytest.approx(
        full_matrix.ssbroyden(b, (1.0 + 1e-14) / b, 5), abs=1e-6
    )


@EVERY
@pytest.mark.parametrize(
    "s, y, s_inverse_s",
    [
        ([1.0, 0.0], [-1.0, 0.0], 1.0),  # curvature that is not positive
        ([1.0, 0.0], [0.0, 1.0], 1.0),
        ([0.0, 0.0], [1.0, 0.0], 1.0),
        ([1.0, 0.0], [math.nan, 0.0], 1.0),
        ([1.0, 0.0], [math.inf, 0.0], 1.0),
        ([1.0, 0.0], [1.0, 0.0], math.nan),
        ([1.0, 0.0], [1.0, 0.0], -1.0),
        ([1e-300, 0.0], [1e-300, 1.0], 1e-300),  # 1/s·y is out of range
        ([1e-160, 0.0], [1e-160, 1e-160], 1e-320),
        ([1e200, 0.0], [1e200, 0.0], 1.0),
    ],
)
def test_a_pair_that_is_not_fit_leaves_the_matrix_as_it_was(name, s, y, s_inverse_s):
    H = identity(2)
    s, y = torch.tensor(s, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    assert not update_(H, s, y, UPDATES[name], s_inverse_s)
    assert torch.equal(H, identity(2))


@EVERY
def test_blocks_of_rows_do_not_change_the_result(name, monkeypatch):
    H, s, y, s_inverse_s = problem(37, 3)
    blocked = H.clone()
    update_(H, s, y, UPDATES[name], s_inverse_s)
    monkeypatch.setattr(full_matrix, "_BLOCK_ON_CPU", 5 * 37)
    update_(blocked, s, y, UPDATES[name], s_inverse_s)
    assert relative_error(blocked, H) < 1e-14


def test_weights_of_another_dtype_update_a_matrix_in_float64():
    H, s, y, s_inverse_s = problem(6, 1)
    exact = H.clone()
    update_(exact, s.float().double(), y.float().double(), full_matrix.bfgs, s_inverse_s)
    update_(H, s.float(), y.float(), full_matrix.bfgs, s_inverse_s)
    assert H.dtype == torch.float64
    assert relative_error(H, exact) < 1e-14


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation made; views are none."""

    def __init__(self, known):
        super().__init__()
        self.known, self.made = {known.untyped_storage().data_ptr()}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.made = max(self.made, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@EVERY
def test_no_second_matrix_is_made(name):
    n = 200
    H, s, y, s_inverse_s = problem(n, 0)
    with Largest(H) as largest:
        assert update_(H, s, y, UPDATES[name], s_inverse_s)
    assert largest.made <= 3 * n


@given(st.integers(1, 12), SEEDS, st.sampled_from([torch.float64, torch.float32]))
def test_the_matrix_of_an_operator(n, seed, dtype):
    matrix = random_spd(n, torch.Generator().manual_seed(seed))
    H = from_operator(DenseScaling(matrix), n, torch.empty(0, dtype=dtype))
    assert H.dtype == torch.float64
    assert torch.equal(H, H.T)
    assert relative_error(H, matrix) < (1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_an_operator_that_is_not_quite_symmetric_becomes_a_symmetric_matrix(rows, monkeypatch):
    monkeypatch.setattr(full_matrix, "_BLOCK_ON_CPU", rows * 7)
    matrix = torch.randn(7, 7, dtype=torch.float64)
    H = from_operator(DenseScaling(matrix), 7, matrix)
    assert torch.allclose(H, (matrix + matrix.T) / 2)
    assert torch.equal(H, H.T)


def test_the_matrix_of_the_kronecker_scaling():
    scaling, shapes = Kronecker(refresh=1), [(4, 3), (4,), (2, 5)]
    n = sum(math.prod(shape) for shape in shapes)
    tensors = [{k: torch.zeros(v, dtype=torch.float64) for k, v in scaling.tensor_shapes(x).items()} for x in shapes]
    scaling.build({"square_avg": torch.zeros(n, dtype=torch.float64)}, shapes, tensors)
    for _ in range(4):
        scaling.update(torch.randn(n, dtype=torch.float64))
    H = from_operator(scaling, n, torch.empty(0, dtype=torch.float64))
    assert relative_error(H, dense_kronecker(scaling)) < 1e-10
    assert float(torch.linalg.eigvalsh(H).min()) > 0.0


def test_too_many_weights_are_refused_before_memory_is_taken():
    with pytest.raises(ValueError, match=r"20,000 weights takes 3\.2 GB, and the limit is 10,000 weights or 0\.8 GB"):
        identity(20_000)
    with pytest.raises(ValueError, match="10,001 weights"):
        from_operator(DenseScaling(torch.eye(1)), 10_001, torch.empty(0))
    assert affordable(10_000) == 10_000
