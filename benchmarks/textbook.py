"""adaQN as one would first write it, for comparison: lists of vectors, and a pass over memory for every product.

The recursion is written as in torch.optim.LBFGS, one ``dot`` and one ``add_`` per stored vector; the Fisher
product likewise. No options, no rejection. Buffers are made once, so that the allocator plays no part.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Textbook:
    """Algorithms 1 and 2 for a list of parameters whose ``.grad`` is filled."""

    def __init__(
        self, params: list[Tensor], lr: float, memory_size: int, fisher_size: int, cycle_length: int, dtype: torch.dtype
    ) -> None:
        n = sum(p.numel() for p in params)
        self.params, self.lr, self.cycle_length = params, lr, cycle_length
        self.q, self.r, self.anchor, self.total = (torch.zeros(n) for _ in range(4))
        self.squares = torch.full((n,), 1e-4)
        self.F = [torch.zeros(n, dtype=dtype) for _ in range(fisher_size)]
        self.S = [torch.zeros(n, dtype=dtype) for _ in range(memory_size)]
        self.Y = [torch.zeros(n, dtype=dtype) for _ in range(memory_size)]
        self.sy = [1.0] * memory_size
        self.steps = self.stored = 0

    @torch.no_grad()
    def step(self) -> None:
        g = torch.cat([p.grad.view(-1) for p in self.params], out=self.q)
        self.squares.addcmul_(g, g)
        self.F[self.steps % len(self.F)].copy_(g)
        d = self.direction(g)
        sizes = [p.numel() for p in self.params]
        for p, part, total in zip(self.params, d.split(sizes), self.total.split(sizes), strict=True):
            p.view(-1).add_(part, alpha=-self.lr)
            total.add_(p.view(-1))
        self.steps += 1
        if self.steps % self.cycle_length == 0:
            self._finish_cycle()

    def direction(self, q: Tensor) -> Tensor:
        m = len(self.S)
        oldest_first = [i % m for i in range(max(self.stored - m, 0), self.stored)]
        alphas = [0.0] * m
        for i in reversed(oldest_first):
            alphas[i] = float(self.S[i].to(q.dtype).dot(q)) / self.sy[i]
            q.add_(self.Y[i], alpha=-alphas[i])
        r = torch.rsqrt(self.squares, out=self.r).mul_(q)
        for i in oldest_first:
            beta = float(self.Y[i].to(r.dtype).dot(r)) / self.sy[i]
            r.add_(self.S[i], alpha=alphas[i] - beta)
        return r

    def _finish_cycle(self) -> None:
        candidate = torch.div(self.total, self.cycle_length, out=self.q)
        s, y = torch.sub(candidate, self.anchor, out=self.r), self.total.zero_()
        gradients = self.F[: self.steps]
        for g in gradients:
            y.add_(g, alpha=float(g.to(s.dtype).dot(s)) / len(gradients))
        slot = self.stored % len(self.S)
        self.S[slot].copy_(s)
        self.Y[slot].copy_(y)
        self.sy[slot] = float(s.dot(y))
        self.stored += 1
        self.anchor.copy_(candidate)
        self.total.zero_()
