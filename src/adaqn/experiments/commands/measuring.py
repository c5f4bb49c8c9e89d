"""What a step of an optimizer takes on this machine, in memory and time, and whether the machine was idle enough."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adaqn import AdaQN
from adaqn.experiments.optimizers import entry
from adaqn.experiments.training.optimizer_memory import state_bytes
from adaqn.optim.removed import flat_preset, from_flat

REPEATS, STEPS = 5, 5
"""Times that are taken of each, and steps in each of them."""
IDLE_SHARE = 0.8
"""Of a core that this process should get, at least."""
IDLE_LOAD = 0.5
"""Processes that wait for a core, for each core, at most."""


@dataclass(frozen=True)
class Times:
    """Seconds of the median, the shortest and the longest repeat; and which share of a core the process got."""

    seconds: float
    low: float
    high: float
    share: float

    def as_dict(self) -> dict[str, float]:
        return {"seconds_per_step": self.seconds, "low": self.low, "high": self.high}


def timed(call: Callable[[], None], device: str, steps: int = STEPS) -> Times:
    """Per step, of which a call makes so many."""
    seconds, worked, waited = [], 0.0, 0.0
    for _ in range(REPEATS):
        start, cpu = time.perf_counter(), time.process_time()
        call()
        _wait_for(device)
        took = time.perf_counter() - start
        seconds.append(took / steps)
        worked, waited = worked + time.process_time() - cpu, waited + took
    return Times(statistics.median(seconds), min(seconds), max(seconds), worked / waited if waited else 1.0)


def _wait_for(device: str) -> None:
    if torch.device(device).type != "cpu":
        torch.get_device_module(device).synchronize()


def load() -> float | None:
    """Processes that want a core, averaged over the last minute; ``None`` where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy(before: float | None, times: Sequence[Times], device: str) -> str | None:
    """A warning if times are longer than they would be on an idle machine.

    Args:
        before: the load before anything was measured.
        times: all that was measured.
        device: where; only the CPU's times are judged by this process's share of it.
    """
    cores = os.cpu_count() or 1
    share = min((t.share for t in times), default=1.0)
    if before is not None and before > IDLE_LOAD * cores:
        reason = f"its load was {before:.1f} on {cores} cores"
    elif share < IDLE_SHARE and torch.device(device).type == "cpu":
        reason = f"this process got {share:.0%} of a core"
    else:
        return None
    return f"the machine is busy ({reason}): times are too long by an unknown amount; repeat when it is idle"


def passes(loss: Callable[[], Tensor], network: nn.Module, device: str) -> Times:
    """Forward and backward, once each."""

    def both() -> None:
        for _ in range(STEPS):
            network.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]

    both()
    return timed(both, device)


def with_gradients(network: nn.Module) -> list[nn.Parameter]:
    """Copies of the trained parameters."""
    params = [nn.Parameter(p.detach().clone()) for p in network.parameters() if p.requires_grad]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def steps_of(opt: Optimizer, params: Sequence[nn.Parameter], count: int) -> None:
    for _ in range(count):
        for p in params:
            assert p.grad is not None
            p.grad.neg_()
        opt.step()


def cost_of_rival(network: nn.Module, name: str, device: str) -> tuple[dict[str, float], Times]:
    """Of AdamW or SOAP, when its state is there."""
    params, chosen = with_gradients(network), entry(name)
    opt = chosen.make(params, lr=1e-9, **chosen.defaults)
    steps_of(opt, params, 2 * STEPS)
    times = timed(lambda: steps_of(opt, params, 2 * STEPS), device, 2 * STEPS)  # SOAP's bases: every tenth step
    return {"bytes": state_bytes(opt), **times.as_dict()}, times


def cost_of_adaqn(
    network: nn.Module, preset: str, dtypes: dict[str, Any], device: str
) -> tuple[dict[str, float], Times]:
    """With full memory, over whole cycles, without a monitor."""
    params = with_gradients(network)
    usual = flat_preset(preset)
    stored = {"curvature_test": lambda *_: True} if usual["memory_size"] else {}  # it would turn pairs on
    opt = AdaQN(params, lr=0.0, **from_flat({"preset": preset, "acceptance": "none", **stored, **dtypes}))
    size = opt.state_size()
    opt.param_groups[0]["lr"] = 1e-9
    length = usual["cycle_length"]
    steps_of(opt, params, length * max(usual["memory_size"] + 2, usual["fisher_size"] // length + 1))
    times = timed(lambda: steps_of(opt, params, length), device, length)
    return {"bytes": size, **times.as_dict()}, times
