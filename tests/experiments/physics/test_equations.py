"""Equations: their solutions satisfy them, and derivatives are those of the network."""

import pytest
import torch
from torch import nn

from adaqn.experiments.physics.equations import EQUATIONS, solution_of
from adaqn.experiments.physics.residuals import Residuals, ScaledNetwork, glorot


class Exact(nn.Module):
    """The solution in the place of a network, differentiable as one; an exact formula, or one of a grid."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, points):
        x, y = points[:, 0], points[:, 1]
        pi = torch.pi
        if self.name == "convection":
            return torch.sin(x - 30 * y)
        if self.name == "wave":
            fast = 0.5 * torch.sin(4 * pi * x) * torch.cos(8 * pi * y)
            return torch.sin(pi * x) * torch.cos(2 * pi * y) + fast
        return EQUATIONS[self.name]().exact(x, y)


def parts(name, count=200, seed=0):
    equation = EQUATIONS[name]()
    inside, conditions = equation.inside(count, seed), equation.conditions(100)
    points = torch.cat([inside, *(condition.points for condition in conditions)])
    return equation, inside, conditions, points


@pytest.mark.parametrize("name", ["convection", "wave", "poisson", "helmholtz"])
def test_the_exact_solution_leaves_no_residual(name):
    equation, inside, conditions, points = parts(name)
    residuals, _ = Residuals(Exact(name), equation, inside, conditions)(points)
    assert residuals.abs().max() < 1e-9
    solution = solution_of(name)
    torch.testing.assert_close(Exact(name)(solution.points()), solution.values.flatten())


@pytest.mark.parametrize("name", ["burgers", "allen-cahn"])
def test_the_computed_solution_leaves_little_residual_where_it_is_smooth(name):
    """Central differences on the grid; away from the shock and the interfaces."""
    equation, solution = EQUATIONS[name](), solution_of(name)
    u, dx, dt = solution.values, solution.x[1] - solution.x[0], solution.y[1] - solution.y[0]
    u_x, u_t = (u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx), (u[2:, 1:-1] - u[:-2, 1:-1]) / (2 * dt)
    u_xx = (u[1:-1, 2:] - 2 * u[1:-1, 1:-1] + u[1:-1, :-2]) / dx**2
    first = torch.stack([u_x.flatten(), u_t.flatten()], dim=1)
    left = equation.residual(u[1:-1, 1:-1].flatten(), first, {0: u_xx.flatten()}, None)
    smooth = u_x.flatten().abs() < 2.0
    assert smooth.double().mean() > 0.5
    assert left[smooth].abs().median() < 1e-2
    assert left[smooth].abs().mean() < 1e-2
    torch.testing.assert_close(solution.values[0], equation.start(solution.x))


@pytest.mark.parametrize("name", list(EQUATIONS))
def test_derivatives_are_those_of_the_network(name):
    """Against central differences in float64, and the same without gradients of the weights."""
    equation, inside, conditions, points = parts(name, 20)
    network = ScaledNetwork(2, 8, equation.low, equation.high).double()
    glorot(network, torch.Generator().manual_seed(0))
    model = Residuals(network, equation, inside, conditions).double()
    h = 1e-4

    def moved(axis, by):
        return network(inside + by * torch.eye(2, dtype=torch.float64)[axis])

    with torch.no_grad():
        u = network(inside)
        first = torch.stack([(moved(axis, h) - moved(axis, -h)) / (2 * h) for axis in (0, 1)], dim=1)
        second = {axis: (moved(axis, h) - 2 * u + moved(axis, -h)) / h**2 for axis in (0, 1)}
        expected = equation.residual(u, first, second, equation.source(inside))
        without, _ = model(points)
    found, _ = model(points)
    torch.testing.assert_close(found[:20].detach(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.detach(), without)
    assert not without.requires_grad
    found.square().mean().backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in network.hidden.parameters())


def test_points_are_inside_and_belong_to_the_seed():
    equation = EQUATIONS["convection"]()
    points = equation.inside(64, seed=3)
    low, high = torch.tensor(equation.low), torch.tensor(equation.high)
    assert ((points >= low) & (points <= high)).all()
    assert torch.equal(points, equation.inside(64, seed=3))
    assert not torch.equal(points, equation.inside(64, seed=4))


def test_the_network_sees_inputs_between_minus_one_and_one():
    network = ScaledNetwork(1, 3, (0.0, -2.0), (10.0, 2.0)).double()
    corners = torch.tensor([[0.0, -2.0], [10.0, 2.0]], dtype=torch.float64)
    assert torch.equal((corners - network.middle) * network.scale, torch.tensor([[-1.0, -1], [1, 1]]).double())
