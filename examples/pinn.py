"""A physics-informed network in plain PyTorch: Burgers' equation with adaqn.LBFGS.

    u_t + u u_x = ν u_xx on [-1, 1] × [0, 1],  u(x, 0) = -sin(πx),  u(±1, t) = 0,  ν = 0.05/π

python examples/pinn.py [folder] [--steps 40] [--points 1000]

The run may be killed at any moment and restarted. The error is the relative L2 error.
"""

import argparse
import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from adaqn import LBFGS

VISCOSITY = 0.05 / math.pi  # the usual 0.01 / π has a shock that needs many more points


def residual(net: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    """The residual of the equation at each point."""
    x, t = x.requires_grad_(), t.requires_grad_()
    u = net(torch.cat([x, t], 1))
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return u_t + u * u_x - VISCOSITY * u_xx


def exact(x: Tensor, t: Tensor) -> Tensor:
    """The Cole-Hopf solution: a quotient of two integrals."""
    eta = torch.linspace(-8, 8, 401, dtype=torch.float64)
    y = math.pi * (x.double() - (4 * VISCOSITY * t.double()).sqrt() * eta)
    weights = torch.exp(-(eta**2) - y.cos() / (2 * math.pi * VISCOSITY))
    return (-(weights * y.sin()).sum(1, keepdim=True) / weights.sum(1, keepdim=True)).float()


def main(folder: str, steps: int, points: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh())
    net.append(nn.Linear(30, 1))
    x, t = 2 * torch.rand(points, 1) - 1, torch.rand(points, 1)  # interior points
    ends = torch.cat([torch.randint(2, (100, 1)) * 2.0 - 1, torch.rand(100, 1)], 1)  # boundary points, where u = 0
    start = torch.cat([torch.linspace(-1, 1, 100)[:, None], torch.zeros(100, 1)], 1)
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 101), torch.linspace(0, 1, 51))
    solution = exact(grid[:, :1], grid[:, 1:])

    opt = LBFGS(net.parameters(), max_iter=25, tolerance_change=0)  # was torch.optim.LBFGS(...)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = residual(net, x, t).square().mean() + net(ends).square().mean()
        loss = loss + (net(start) + torch.sin(math.pi * start[:, :1])).square().mean()
        loss.backward()
        return loss

    first = 0
    path = Path(folder, "checkpoint.pt")
    if path.exists():
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["optimizer"])
        first = saved["step"]
        print(f"resumed after {first} of {steps} steps from {path}: delete it to start over")
    path.parent.mkdir(parents=True, exist_ok=True)
    for step in range(first, steps):
        opt.step(closure)  # up to 25 iterations; save between two steps
        torch.save({"net": net.state_dict(), "optimizer": opt.state_dict(), "step": step + 1}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # atomic: a kill never leaves half a checkpoint
        with torch.no_grad():
            error = torch.linalg.vector_norm(net(grid) - solution) / torch.linalg.vector_norm(solution)
        done = opt.stats
        print(f"step {step}: loss {done.loss!r}, error {error:.2e}, {done.evaluations} evaluations", flush=True)
    print(opt.explain())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="examples-output/pinn", help=about)
    parser.add_argument(
        "--steps", type=int, default=40, help="number of steps, each up to 25 iterations (default: %(default)s)"
    )
    parser.add_argument("--points", type=int, default=1000, help="number of interior points (default: %(default)s)")
    main(**vars(parser.parse_args()))
