"""The direction is −H·g with H from the BFGS formula on γΛ^½H0Λ^½, as a dense float64 matrix."""

import pytest
import torch

import adaqn
import inside
from fullbatch.problems import network, valley
from oracles import dense_bfgs, dense_kronecker, relative_error


def dense_h0(opt, n):
    """H0 by its columns; the Kronecker one by its formula as well."""
    columns = [opt.scaling.apply(e, out=torch.empty_like(e)) for e in torch.eye(n, dtype=torch.float64)]
    H0 = torch.stack(columns, dim=1)
    if isinstance(opt.scaling, adaqn.Kronecker):
        assert relative_error(H0, dense_kronecker(opt.scaling)) < 1e-8
    return H0


def dense_h(opt, n, roots=None):
    S, Y = map(list, zip(*inside.pairs(opt), strict=True))
    L = torch.diag(torch.ones(n, dtype=torch.float64) if roots is None else roots)
    H0 = L @ dense_h0(opt, n) @ L
    return dense_bfgs(S, Y, inside.number(opt, "gamma") * H0), H0, S, Y


@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("make", [valley, network])
def test_the_direction_is_the_dense_matrix_times_the_gradient(scaling, size, make):
    problem = make()
    opt = adaqn.LBFGS(problem.parameters(), scaling=scaling, history_size=size, max_iter=7)
    for _ in range(3):
        opt.step(problem.closure(opt))
        g = problem.gradient()
        H, _, S, _ = dense_h(opt, len(g))
        assert 0 < len(S) <= size
        assert relative_error(inside.direction(opt, g), -H @ g) < 1e-8
        assert torch.linalg.eigvalsh(0.5 * (H + H.T)).min() > 0


@pytest.mark.parametrize("scaling", ["identity", "adam"])
def test_gamma_is_of_the_newest_pair(scaling):
    """H0 as it was when the pair was stored: a step of one iteration, after which it has learnt nothing more."""
    problem = valley()
    opt = adaqn.LBFGS(problem.parameters(), scaling=scaling, max_iter=1, max_eval=30)
    for _ in range(8):
        opt.step(problem.closure(opt))
        _, H0, S, Y = dense_h(opt, 12)
        expected = float((S[-1] @ Y[-1]) / (Y[-1] @ H0 @ Y[-1]))
        assert abs(inside.number(opt, "gamma") - expected) < 1e-10 * expected


@pytest.mark.parametrize("lr", [1.0, 0.1, 0.02])
@pytest.mark.parametrize("make", [valley, network])
def test_without_a_search_gamma_follows_an_h0_that_turns(lr, make):
    """With γ of an older H0 the second step of these runs went to losses of 1e3 and 1e12, and did not come back."""
    problem = make()
    opt = adaqn.LBFGS(problem.parameters(), lr=lr, line_search_fn=None, max_iter=40, scaling="kronecker")
    before = problem.loss().item()
    opt.step(problem.closure(opt))
    assert problem.loss().item() < 0.5 * before


def test_the_pairs_are_steps_and_changes_of_the_gradient():
    problem, points = valley(), []

    def note(_):
        points.append((problem.vector(), problem.gradient()))

    opt = adaqn.LBFGS(problem.parameters(), max_iter=6, on_cycle=note)
    note(None)
    opt.step(problem.closure(opt))
    pairs = inside.pairs(opt)
    assert len(pairs) == len(points) - 1
    for (s, y), (w0, g0), (w1, g1) in zip(pairs, points, points[1:], strict=False):
        assert relative_error(s, w1 - w0) < 1e-12
        assert relative_error(y, g1 - g0) < 1e-8


@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
def test_the_step_sizes_of_groups_scale_h0_on_both_sides(scaling):
    problem = valley()
    a, b, c = problem.parameters()
    groups = [{"params": [a], "lr": 0.25}, {"params": [b]}, {"params": [c], "lr": 0.01}]
    opt = adaqn.LBFGS(groups, lr=1.0, scaling=scaling, max_iter=6)
    opt.step(problem.closure(opt))
    g = problem.gradient()
    roots = torch.cat([torch.full((p.numel(),), r, dtype=torch.float64) for p, r in ((a, 0.5), (b, 1.0), (c, 0.1))])
    H, _, S, _ = dense_h(opt, 12, roots)
    assert relative_error(inside.direction(opt, g), -H @ g) < 1e-8
    assert len(S) > 1


def test_the_first_direction_of_a_group_is_scaled_by_its_step_size():
    """Λg where H0 = I and nothing is stored; the largest step size is the length of the trial."""
    a, b = (torch.nn.Parameter(torch.full((3,), 1.0, dtype=torch.float64)) for _ in range(2))
    before = a.detach().clone()

    def closure():
        opt.zero_grad()
        loss = 0.01 * (a.square().sum() + b.square().sum())
        loss.backward()
        return loss

    groups = [{"params": [a], "lr": 0.5}, {"params": [b], "lr": torch.tensor(0.125)}]
    opt = adaqn.LBFGS(groups, scaling="identity", max_iter=1, line_search_fn=None)
    opt.step(closure)
    ratio = (b.detach() - before) / (a.detach() - before)
    torch.testing.assert_close(ratio, torch.full((3,), 0.25, dtype=torch.float64))
    torch.testing.assert_close(a.detach(), before - 0.5 * 0.02)


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("scaling", ["identity", "adam", "kronecker"])
def test_damping_keeps_every_pair_above_its_share_of_h0(share, scaling):
    """y is mixed with (γH0)⁻¹s, so that no pair is skipped even where the curvature is negative."""
    w = torch.nn.Parameter(torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64))

    def closure():
        opt.zero_grad()
        loss = torch.cos(w).sum() + 0.01 * w.pow(4).sum()  # concave where it begins
        loss.backward()
        return loss

    opt = adaqn.LBFGS([w], scaling=scaling, damping=share, max_iter=12, line_search_fn="backtracking")
    opt.step(closure)
    undamped = adaqn.LBFGS([w], scaling=scaling, max_iter=12, line_search_fn="backtracking")
    assert opt.stats.stored > 0
    assert opt.stats.skipped == 0
    assert all(s @ y > 0 for s, y in inside.pairs(opt))
    with torch.no_grad():
        w.copy_(torch.tensor([0.3, -0.2, 0.1]))
    opt = undamped
    opt.step(closure)
    assert opt.stats.skipped > 0
