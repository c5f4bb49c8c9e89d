"""What an optimizer holds: from its public state where that says it; its private members are touched here alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaqn.fullbatch.optimizer import WholeGradient

# ---------------------------------------------------------------------- by the public state


def kept(opt: Any, name: str) -> Tensor:
    """A vector of the state, or the rows of several, over all parameters."""
    parts = []
    for p in (p for group in opt.param_groups for p in group["params"] if p in opt.state):
        view, n = opt.state[p][name], p.numel() * (2 if p.is_complex() else 1)
        parts.append(view.reshape(*(() if view.numel() == n else (-1,)), n))
    return torch.cat(parts, dim=-1)


def number(opt: Any, name: str) -> float:
    """A plain number of the saved state that all parameters share."""
    (value,) = {entry[name] for entry in opt.state_dict()["state"].values()}
    return value


# ---------------------------------------------------------------------- by private members


def state(opt: Any) -> Any:
    """All that it keeps for its parameters, a ``Memory``; ``None`` before the first step."""
    return opt._memory if isinstance(opt, WholeGradient) else opt._state


def pairs(opt: Any) -> list[tuple[Tensor, Tensor]]:
    """Copies of the stored s and y, the oldest first."""
    return [(s.clone(), y.clone()) for s, y, _ in state(opt).pairs]


def buffers(opt: Any) -> dict[str, Tensor]:
    return state(opt).buffers


def held(opt: Any) -> list[Tensor]:
    """Every tensor that it holds: what is kept between steps, and (not for whole gradients) the work space."""
    m = state(opt)
    if isinstance(opt, WholeGradient):
        return [*m.shared.values(), *m.buffers.values()]
    return [m.scratch.gradient, m.scratch.direction, m.gram, *m.buffers.values()]


def method(opt: Any) -> Any:
    """The parts and numbers that the method is made of."""
    return opt._method


def direction(opt: Any, g: Tensor) -> Tensor:
    """H·g, as a step would take it; −H·g where gradients are whole."""
    m = state(opt)
    if isinstance(opt, WholeGradient):
        return m.direction(g)
    return method(opt).direction(g.clone(), m.pairs, m.scaling, out=torch.empty_like(g)).clone()


def recent(opt: Any) -> list[Any]:
    """The cycles that explain() knows one by one."""
    return list(opt._recent)


def anchor_losses(opt: Any) -> Tensor | None:
    """What the monitor returned at the anchor, look by look, while that is remembered."""
    known = opt._watch._at_anchor
    return torch.cat([losses.reshape(-1) for losses in known]) if known else None
