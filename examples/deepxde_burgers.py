"""Burgers' equation in DeepXDE, trained with adaqn.LBFGS.

    u_t + u u_x = ν u_xx on [-1, 1] × [0, 1],  u(x, 0) = -sin(πx),  u(±1, t) = 0,  ν = 0.05/π

python examples/deepxde_burgers.py [folder] [--steps 40] [--points 1000]

DeepXDE accepts any PyTorch optimizer: ``model.compile(opt)``. One of its iterations is one ``opt.step``, here up to 25
iterations of L-BFGS. The run may be killed at any moment and restarted.
"""

import argparse
import os
from pathlib import Path

os.environ["DDE_BACKEND"] = "pytorch"  # before the import

import deepxde as dde
import numpy as np

from adaqn import LBFGS

VISCOSITY = 0.05 / np.pi  # the usual 0.01 / π has a shock that needs many more points


def equation(x, u):
    """The residual."""
    u_x, u_t = dde.grad.jacobian(u, x, i=0, j=0), dde.grad.jacobian(u, x, i=0, j=1)
    return u_t + u * u_x - VISCOSITY * dde.grad.hessian(u, x, i=0, j=0)


def exact(points):
    """The Cole-Hopf solution: a quotient of two integrals."""
    eta = np.linspace(-8, 8, 401)
    y = np.pi * (points[:, :1] - np.sqrt(4 * VISCOSITY * points[:, 1:]) * eta)
    weights = np.exp(-(eta**2) - np.cos(y) / (2 * np.pi * VISCOSITY))
    return -(weights * np.sin(y)).sum(1, keepdims=True) / weights.sum(1, keepdims=True)


def burgers(points: int) -> tuple[dde.Model, dde.nn.FNN]:
    domain = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, 1))
    ends = dde.icbc.DirichletBC(domain, lambda x: 0, lambda _, on_boundary: on_boundary)
    start = dde.icbc.IC(domain, lambda x: -np.sin(np.pi * x[:, :1]), lambda _, on_initial: on_initial)
    sizes = {"num_domain": points, "num_boundary": 100, "num_initial": 100}
    data = dde.data.TimePDE(domain, equation, [ends, start], solution=exact, num_test=2000, **sizes)
    net = dde.nn.FNN([2, 30, 30, 30, 1], "tanh", "Glorot normal")
    return dde.Model(data, net), net


def last_checkpoint(folder: Path) -> tuple[int, Path | None]:
    saved = {int(path.stem): path for path in folder.glob("*.pt")}
    return (max(saved), saved[max(saved)]) if saved else (0, None)


def main(folder: str, steps: int, points: int) -> None:
    dde.config.set_random_seed(0)
    model, net = burgers(points)
    opt = LBFGS(net.parameters(), max_iter=25, tolerance_change=0)
    model.compile(opt, metrics=["l2 relative error"], verbose=0)

    Path(folder).mkdir(parents=True, exist_ok=True)
    first, path = last_checkpoint(Path(folder))
    if path is not None:
        model.restore(str(path))  # the network and the optimizer
        print(f"resumed after {first} of {steps} steps from {path}: delete {folder} to start over")
    for step in range(first, steps):
        _, state = model.train(iterations=1, verbose=0)
        unfinished = model.save(str(Path(folder, "unfinished")))
        os.replace(unfinished, Path(folder, f"{step + 1}.pt"))  # a kill never leaves half a checkpoint
        done, (error,) = opt.stats, state.metrics_test
        print(f"step {step}: loss {done.loss!r}, error {error:.2e}, {done.evaluations} evaluations", flush=True)
    print(opt.explain())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="examples-output/deepxde_burgers", help=about)
    parser.add_argument(
        "--steps", type=int, default=40, help="number of steps, each up to 25 iterations (default: %(default)s)"
    )
    parser.add_argument("--points", type=int, default=1000, help="number of interior points (default: %(default)s)")
    main(**vars(parser.parse_args()))
