"""All that the loop of :mod:`adaqn.optim.optimizer` keeps for one set of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from adaqn.core.acceptance import GROUPS
from adaqn.core.history import Average
from adaqn.core.momentum import Momentum
from adaqn.core.products import on_host
from adaqn.optim.events import FORMAT, Counters
from adaqn.optim.layout import vector_layout
from adaqn.optim.method import Method, Parts
from adaqn.optim.tally import Tally
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.memory import Memory, without_prefix


class Scratch:
    """Two vectors to work with, under the name of what they hold at the time; nothing in them outlives a step."""

    def __init__(self, flat: FlatParameters) -> None:
        one, other = flat.new(), flat.new()
        self.gradient = one
        """g of this step, and after the momentum its average; the direction spends it."""
        self.weights = one
        """The weights, for the average; and while others are in their place."""
        self.s = one
        """The displacement of a cycle."""
        self.direction = other
        """H·g."""
        self.candidate = other
        """The average of a cycle."""
        # Cut once: the per-parameter views of what every step touches.
        self.gradient_parts, self.direction_parts = flat.views(one), flat.views(other)


class State(Memory):
    """The vectors, the parts of the method that live on them, and the counters."""

    @torch.inference_mode(False)
    def __init__(
        self, flat: FlatParameters, method: Method, parts: Parts, *, momentum: bool, counters: Counters | None = None
    ) -> None:
        super().__init__(flat, parts.scaling, vector_layout(method, momentum=False), method.memory_size)
        self.method, self.parts, self.curvature = method, parts, parts.curvature
        self.momentum: Momentum | None = None
        self.counters = counters or Counters()
        self.best = torch.tensor([math.inf] * GROUPS, dtype=torch.float64)
        """The losses at the best average that was accepted, in groups; inf where none is known (D23)."""
        self.shared["best_losses"] = self.best
        self.frozen = {id(p) for p in flat.params if not p.requires_grad and p.grad is not None}
        """Parameters with a gradient set by hand: they stay here, with one or without (D26)."""
        self.scratch = Scratch(flat)
        self.anchor = self.buffers["anchor"]
        self.average = Average(self.buffers["window"])
        self.tally = Tally(self.counters, flat.device)
        if self.curvature.rows:
            self.curvature.build(self.buffers["fisher"], flat.reduce)
        if momentum:
            self.make_momentum()
        if method.averaging:
            self.keep_accepted()
        self.restart()

    def make_momentum(self) -> None:
        """From here on the recursion sees averaged gradients."""
        if self.momentum is None:
            self.momentum = Momentum(nesterov=self.method.nesterov)
            self.buffers["momentum"] = self.flat.new()
            self.momentum.build(self.buffers["momentum"], self.flat.sizes)

    def __getstate__(self) -> dict[str, Any]:
        # Views of one buffer come out of a pickle as separate tensors, so only the buffers go in.
        names = ("flat", "method", "parts", "buffers", "shared")
        parts = {name: getattr(self, name) for name in names}
        return parts | {"numbers": [self.numbers(i) for i in range(len(self.flat.params))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffers = state["buffers"]
        State.__init__(self, state["flat"], state["method"], state["parts"], momentum="momentum" in buffers)
        if "accepted" in buffers:
            self.keep_accepted()
        if "iterate" in buffers:
            self.keep_iterate()
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)
        for name, tensor in state["shared"].items():
            self.shared[name].copy_(tensor)
        self.load_numbers(state["numbers"])

    @property
    def accepted(self) -> Tensor | None:
        """What is shown of accepted candidates: their growing average, or the last one from when it was asked for."""
        return self.buffers.get("accepted")

    @property
    def is_new(self) -> bool:
        """Has no step been made?"""
        return self.counters.steps == 0 and self.counters.cycles == 0 and self.tally.steps == 0

    @property
    def iterate(self) -> Tensor | None:
        """The weights, while the average is in their place."""
        return self.buffers.get("iterate")

    @property
    def cycle_length(self) -> int:
        """L, within its bounds where it adapts: a saved state may come from wider ones."""
        if self.method.cycle_bounds is None:
            return self.method.cycle_length
        shortest, longest = self.method.cycle_bounds
        return min(max(self.counters.cycle_length or self.method.cycle_length, shortest), longest)

    @property
    def step_multiplier(self) -> float:
        """Of all step sizes: by rejections, and by the warm-up and the decay of the method."""
        return self.counters.step_multiplier * self.warmth * self.decay

    @property
    def warmth(self) -> float:
        """k/warm_up in the k-th step, up to 1: H0 knows little of the gradients before it has seen some."""
        steps = self.counters.steps + self.tally.lost
        return 1.0 if steps >= self.method.warm_up else (steps + 1) / (self.method.warm_up + 1)

    @property
    def decay(self) -> float:
        """τ/(τ + steps), where the method has a τ."""
        tau = self.method.decay_steps  # whether the host knows by now which steps were finite must not matter
        return 1.0 if tau is None else tau / (tau + self.counters.steps + self.tally.lost)

    # ------------------------------------------------------------------ within a step

    def read_gradients(self) -> list[int]:
        """Scratch ← the gradients, of an objective to be made small; returns which parameters have one."""
        present = self.flat.gather_gradients(self.scratch.gradient_parts)
        if self.method.maximize:
            self.scratch.gradient.neg_()
        return present

    def gather_weights(self) -> Tensor:
        """The weights as one vector, in the scratch memory of the gradient."""
        if self.master is not None:
            return self.master
        torch._foreach_copy_(self.scratch.gradient_parts, self.flat.reals())
        return self.scratch.weights

    def move_anchor_here(self, ok: Tensor) -> None:
        """The anchor ← the weights; where ``ok`` is 0 they may be no place to return to."""
        torch._foreach_copy_(self.scratch.direction_parts, self.weights())
        torch.where(ok.bool(), self.scratch.direction, self.anchor, out=self.anchor)

    def add_to_average(self, ok: Tensor) -> None:
        """L. 7, with the step that has been made; where ``ok`` is 0 there was none."""
        self.average.add(self.gather_weights(), ok)
        self.tally.add(ok)

    # ------------------------------------------------------------------ at the end of a cycle

    def candidate(self) -> Tensor:
        """L. 9: the average of the cycle, in scratch."""
        return self.average.mean(self.tally.count, out=self.scratch.candidate)

    def summary(self, candidate: Tensor) -> Tensor:
        """What the host must know of a cycle: the square of its average, and what :meth:`learn` takes."""
        square = candidate.dot(candidate).double().reshape(1)
        if self.master is not None:  # a wide average may be more than the parameters can hold
            parts = zip(self.flat.views(candidate), self.flat.params, strict=True)
            for held in [part.to(p.dtype.to_real()).isfinite().all() for part, p in parts]:
                square = torch.where(held, square, torch.inf)
        return torch.cat([self.flat.reduce(square), self.tally.unknown])

    def learn(self, summary: Tensor) -> bool:
        """The host, which has the summary now, learns which steps had a finite gradient; is the average a number?"""
        square, fresh, last = summary.tolist()
        if not self.tally.is_known:
            self.tally.learn(int(fresh), int(last))
            self.curvature.settle(int(fresh))
        return math.isfinite(square)

    def settle(self) -> None:
        """The host learns it before the end of the cycle, because somebody asks; one read if there is news."""
        if not self.tally.is_known:
            self.learn(on_host(torch.cat([self.tally.unknown.new_zeros(1), self.tally.unknown]))[0])

    def begin_cycle(self) -> None:
        """L. 10."""
        self.average.clear()
        self.tally.clear()

    # ------------------------------------------------------------------ starting again

    def clear_history(self) -> None:
        self.settle()
        self.pairs.clear()
        self.scaling.on_cleared()
        self.curvature.clear()
        self.begin_cycle()

    def restart(self) -> None:
        """A new history from the parameters as they are (l. 1, 2); H0 keeps what it has seen."""
        self.clear_history()
        if self.momentum is not None:
            self.momentum.reset()
        self.flat.gather(self.anchor)
        for copy in (self.master, self.accepted):
            if copy is not None:
                copy.copy_(self.anchor)
        self.counters.restart()
        self.forget_best()

    def forget_best(self) -> None:
        """Losses of another monitor, or of weights changed from outside, do not compare (D23)."""
        self.best.fill_(math.inf)

    def keep_accepted(self) -> Tensor:
        """Make room for the last accepted candidate; from here on the end of each cycle fills it."""
        if self.accepted is None:
            # After a skip the anchor is older than the last candidate, which is gone.
            known = self.counters.started and not self.counters.skips_in_row
            accepted = self.flat.new()
            self.buffers["accepted"] = accepted.copy_(self.anchor) if known else self.flat.gather(accepted)
        return self.buffers["accepted"]

    def show_accepted(self, candidate: Tensor) -> None:
        """An accepted candidate enters what is shown: x ← x + cℓ/(n + cℓ)·(w̄ − x) after n steps, ℓ of them its own."""
        if self.accepted is None:
            return
        c, counters, own = self.method.averaging, self.counters, self.tally.finite
        first = counters.averaged_steps == 0
        counters.averaged_steps += own
        if c == 0.0 or first:
            self.accepted.copy_(candidate)
        else:
            self.accepted.lerp_(candidate, c * own / (counters.averaged_steps + c * own))

    def keep_iterate(self) -> Tensor:
        """The weights as they are, in memory of their own."""
        self.buffers["iterate"] = self.flat.gather(self.flat.new())
        return self.buffers["iterate"]

    # ------------------------------------------------------------------ saving

    def fill_in(self, entry: dict[str, Any]) -> None:
        """There are always an accepted average and the weights behind it, the anchor where they are not kept.

        A checkpoint is loaded by the names that a fresh optimizer has.
        """
        for name in ("accepted", "iterate"):
            if name not in self.buffers:
                entry[name] = entry["anchor"].clone()

    def numbers(self, index: int) -> dict[str, float]:
        """The plain numbers of that parameter's state."""
        self.settle()
        return {
            "format": FORMAT,
            **asdict(self.counters),
            "keeps_accepted": int(self.accepted is not None),
            "window_count": self.tally.finite,
            "window_steps": self.tally.steps,
            **super().numbers(index),
            **{f"curvature_{name}": value for name, value in self.curvature.numbers().items()},
            **({} if self.momentum is None else {"momentum_step": self.momentum.steps[index]}),
        }

    def load_numbers(self, saved: Sequence[dict[str, Any]]) -> None:
        """Take back what ``numbers`` gave; the buffers hold the saved tensors already."""
        super().load_numbers(saved)
        first = saved[0]
        for name, now in asdict(self.counters).items():
            setattr(self.counters, name, type(now)(first[name]))
        self.tally.restore(int(first["window_steps"]), int(first["window_count"]))
        self.curvature.load_numbers(without_prefix("curvature_", first))
        if self.momentum is not None:
            self.momentum.steps = [int(entry["momentum_step"]) for entry in saved]
