"""Solutions to compare with: against exact ones, a second method, and themselves on finer grids."""

import numpy as np

from adaqn.experiments.physics.solvers import allen_cahn, burgers, periodic

VISCOSITY = 0.01 / np.pi


def no_reaction(u, ik):
    return np.zeros_like(u)


def test_the_integral_of_cole_and_hopf_does_not_depend_on_its_nodes():
    x, t = np.linspace(-1, 1, 41), np.linspace(0, 1, 6)
    few, many = burgers(x, t, VISCOSITY), burgers(x, t, VISCOSITY, nodes=360)
    np.testing.assert_allclose(few, many, atol=1e-11)
    np.testing.assert_allclose(few[0], -np.sin(np.pi * x), atol=1e-11)
    np.testing.assert_allclose(few[:, [0, -1]], 0.0, atol=1e-11)


def test_two_methods_agree_on_burgers_equation():
    x, t = -1 + np.arange(1024) / 512, np.linspace(0, 0.6, 4)  # through the shock at t = 1/π

    def transport(u, ik):
        return -0.5 * np.fft.irfft(ik * np.fft.rfft(u * u), len(u))

    spectral = periodic(-np.sin(np.pi * x), 2.0, lambda k: -VISCOSITY * k**2, transport, t, steps=300)
    np.testing.assert_allclose(spectral[:, ::16], burgers(x[::16], t, VISCOSITY), atol=1e-4)


def test_heat_spreads_as_its_formula_says():
    x, t = np.arange(64) * 2 * np.pi / 64, np.linspace(0, 1, 5)
    found = periodic(np.sin(3 * x), 2 * np.pi, lambda k: -0.1 * k**2, no_reaction, t, steps=1)
    np.testing.assert_allclose(found, np.exp(-0.9 * t)[:, None] * np.sin(3 * x), atol=1e-12)


def test_without_space_the_reaction_is_that_of_its_formula_to_fourth_order():
    t = np.linspace(0, 1, 3)
    exact = 0.1 * np.exp(5 * t) / np.sqrt(1 - 0.01 + 0.01 * np.exp(10 * t))
    errors = []
    for steps in (10, 20):
        found = periodic(np.full(8, 0.1), 2.0, lambda k: 5.0 - 1e-4 * k**2, lambda u, _: -5.0 * u**3, t, steps)
        errors.append(np.abs(found[:, 0] - exact).max())
    assert errors[1] < errors[0] / 12
    assert errors[1] < 1e-4


def test_allen_and_cahns_solution_settles_on_finer_grids():
    t = np.linspace(0, 1, 11)
    finest = allen_cahn(2048, t, steps=40)[:, ::32]
    errors = [np.linalg.norm(allen_cahn(n, t, steps=20)[:, :: n // 64] - finest) for n in (256, 512, 1024)]
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2
    assert errors[2] < 1e-4 * np.linalg.norm(finest)
    assert np.abs(finest).max() <= 1.0 + 1e-9, "it stays between the two phases"
