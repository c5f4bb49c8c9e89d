"""Dense float64 matrices that the fast code must equal, and small problems to run it on."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from adaqn import AdaQN, Kronecker, PairOptions, QuasiNewton, Scaling
from adaqn.core.blocks import Block, blocks_of
from adaqn.core.history import Pairs

SMALL = PairOptions(memory_size=4, fisher_size=7)
"""A memory that is soon full."""
NO_PAIRS = PairOptions(eps=1e9, anchor_patience=0)
"""No pair is ever stored, and the anchor stays."""


def dense_bfgs(S: list[Tensor], Y: list[Tensor], H0: Tensor) -> Tensor:
    """H by the BFGS formula, pair by pair, as a matrix."""
    H = H0.clone()
    identity = torch.eye(len(H0), dtype=H0.dtype)
    for s, y in zip(S, Y, strict=True):
        rho = 1.0 / (s @ y)
        V = identity - rho * torch.outer(y, s)
        H = V.T @ H @ V + rho * torch.outer(s, s)
    return H


class DenseScaling(Scaling):
    """A non-diagonal H0."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def apply(self, v: Tensor, out: Tensor) -> Tensor:
        return out.copy_(self.matrix.to(v.dtype) @ v)


def random_spd(n: int, generator: torch.Generator | None = None) -> Tensor:
    factor = torch.randn(n, n, dtype=torch.float64, generator=generator)
    return factor @ factor.T / n + 0.1 * torch.eye(n, dtype=torch.float64)


def empty_pairs(capacity: int, n: int, dtype: torch.dtype = torch.float64) -> Pairs:
    gram = torch.zeros(capacity, capacity, dtype=torch.float64)
    return Pairs(torch.zeros(capacity, n, dtype=dtype), torch.zeros(capacity, n, dtype=dtype), gram)


class NoisyValley:
    """A curved, noisy, not quite convex function of a vector; the same noise for the same step."""

    def __init__(self, n: int = 12, *, noise: float = 0.3, scale: float = 1.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.n, self.noise, self.scale = n, noise, scale
        self.A = random_spd(n, generator)
        self.w0 = torch.randn(n, dtype=torch.float64, generator=generator)
        self.generator = generator
        self._noise: list[Tensor] = []

    def loss(self, w: Tensor) -> Tensor:
        return self.scale * (0.5 * w @ self.A @ w + 0.1 * torch.sin(3.0 * w).sum() + 2.0)

    def gradient(self, w: Tensor, k: int) -> Tensor:
        while len(self._noise) <= k:
            self._noise.append(torch.randn(self.n, dtype=torch.float64, generator=self.generator))
        exact = self.A @ w + 0.3 * torch.cos(3.0 * w)
        return self.scale * (exact + self.noise * self._noise[k])


class Vector(nn.Module):
    """A model that is one vector, cut into parameters of odd shapes."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        sizes = [1, 5, len(w) - 6]
        shapes = [(), (5,), (2, sizes[2] // 2) if sizes[2] % 2 == 0 else (sizes[2],)]
        pieces = zip(w.clone().split(sizes), shapes, strict=True)
        self.pieces = nn.ParameterList([nn.Parameter(p.reshape(shape)) for p, shape in pieces])

    def vector(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.pieces])

    def set_gradient(self, g: Tensor) -> None:
        for p, piece in zip(self.pieces, g.split([p.numel() for p in self.pieces]), strict=True):
            p.grad = piece.reshape(p.shape).to(p.dtype).clone()


def as_printed(params, **options) -> AdaQN:
    """AdaQN as the paper prints it."""
    return AdaQN(params, **{"preset": "paper", **options})


def quiet(params, **options) -> AdaQN:
    """The same, needs no monitor and never says so."""
    return as_printed(params, **{"lr": 0.05, "reject": "none", **options})


def take_step(opt: QuasiNewton, fill: Callable[[], None]) -> None:
    """One step of a method that may compare gradients; ``fill`` sets them at the point where the weights are."""
    if "closure" in getattr(opt, "needs", ""):  # torch's own have no such line
        opt.step(fill)
    else:
        fill()
        opt.step()


def run(opt: QuasiNewton, model: Vector, problem: NoisyValley, steps: range) -> Tensor:
    """Drive an optimizer over the problem; returns the weights after each step."""
    path = []
    for k in steps:
        take_step(opt, lambda k=k: model.set_gradient(problem.gradient(model.vector().double(), k)))
        path.append(model.vector().clone())
    return torch.stack(path)


def with_history(model: Vector, problem: NoisyValley, steps: int = 23, **options) -> AdaQN:
    """An optimizer in mid-training: several pairs stored, in the middle of a cycle."""
    opt = quiet(model.parameters(), **{"cycle_length": 3, "pairs": SMALL, **options})
    run(opt, model, problem, range(steps))
    assert opt.stats.pairs > 0
    return opt


def assert_same(a, b):
    """The same tensors, to the bit, and plain values, in dictionaries however deep."""
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, dict):
            assert_same(value, b[name])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, b[name]), name
        else:
            assert value == b[name], name


def relative_error(a: Tensor, b: Tensor) -> float:
    scale = max(float(b.norm()), math.ulp(1.0))
    return float((a.double() - b.double()).norm()) / scale


def dense_kronecker(scaling: Kronecker) -> Tensor:
    """H0 of the Kronecker scaling as a matrix: (Q_L ⊗ Q_R) diag(1/(√V̂ + ε)) (Q_L ⊗ Q_R)ᵀ for each block of each
    parameter, in float64, with the roots at least 128 units of rounding of their norm."""
    n, start = sum(scaling.sizes), 0
    H0 = torch.zeros(n, n, dtype=torch.float64)
    least = 128.0 * torch.finfo(scaling.vectors["square_avg"].dtype).eps
    for i, (p, q) in enumerate(scaling.matrices):
        V = scaling.vectors["square_avg"].double()[start : start + p * q].view(p, q)
        places = torch.arange(start, start + p * q).view(p, q)
        start += p * q
        kept = {name: tensor.double().flatten() for name, tensor in scaling.tensors[i].items()}
        is_vector = len(scaling.shapes[i]) < 2
        for block in [Block((0, p), (0, q))] if is_vector else blocks_of((p, q), scaling.block_size):
            K = torch.ones(1, 1, dtype=torch.float64)
            for side, whole, length in zip(("left", "right"), block.shape, block.sides, strict=True):
                Q = torch.eye(whole, dtype=torch.float64)
                if length > 1 and not is_vector:
                    Q = kept[f"{side}_basis"][: length**2].view(length, length)
                    kept[f"{side}_basis"] = kept[f"{side}_basis"][length**2 :]
                K = torch.kron(K, Q)
            where = slice(*block.rows), slice(*block.columns)
            roots = (V[where] / (1.0 - scaling.decay ** max(scaling.steps[i], 1))).sqrt() + scaling.eps
            if not is_vector and max(block.sides) > 1:
                roots = roots.clamp(min=least * float(roots.norm()))
            here = places[where].flatten()
            H0[here[:, None], here] = K @ torch.diag(1.0 / roots.flatten()) @ K.T
    return H0
