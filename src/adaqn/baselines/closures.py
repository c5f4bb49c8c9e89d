"""Closures that return a loss and its outputs with their graphs: called, checked, and called again the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaqn.core.jacobian import Jvp, forward_mode
from adaqn.evaluation.random_state import RandomState

T = TypeVar("T")
GraphClosure = Callable[[], Any]
"""Returns ``(loss, outputs)`` or ``(loss, outputs, hidden_states)`` and does not call backward."""


@dataclass(frozen=True)
class Evaluation:
    """What a closure returned."""

    loss: Tensor
    outputs: list[Tensor]
    hidden: list[Tensor]


class Replay:
    """A closure that draws the same random numbers at every call, so that its losses can be compared.

    With dropout, two calls would otherwise be two functions, and their difference no effect of the step.
    The first call draws on as usual; the later ones leave torch's random state alone.

    Args:
        closure: as in ``GraphClosure``; it must evaluate the same batch whenever it is called.
        device: where the parameters lie.
        sign: −1 to maximize.
    """

    def __init__(self, closure: GraphClosure, device: torch.device, sign: float = 1.0) -> None:
        self.closure, self.device, self.sign = closure, device, sign
        self.state: RandomState | None = None

    def __call__(self) -> Evaluation:
        if self.state is None:
            self.state = RandomState([self.device])
            return checked(self.closure(), self.sign)
        with self.state.replayed():
            return checked(self.closure(), self.sign)

    def with_graph(self) -> Evaluation:
        with torch.enable_grad():
            return self()

    def loss(self) -> float:
        """The loss alone; infinite where it is not finite, so that no comparison prefers it."""
        with torch.no_grad():
            value = float(self().loss)
        return value if math.isfinite(value) else math.inf


def checked(returned: Any, sign: float) -> Evaluation:
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise TypeError(
            "the closure must return (loss, outputs) or (loss, outputs, hidden_states) without calling backward; "
            f"got {_described(returned)}"
        )
    loss, outputs = returned[:2]
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
        raise TypeError(f"the closure's loss must be a real tensor with one element, got {_described(loss)}")
    hidden = returned[2] if len(returned) == 3 else None
    return Evaluation(sign * loss.reshape(()), _tensors("outputs", outputs), _tensors("hidden_states", hidden))


def check_batch_dim(tensors: Sequence[Tensor], batch_dim: int) -> None:
    for t in tensors:
        if t.dim() and not -t.dim() <= batch_dim < t.dim():
            raise ValueError(
                f"batch_dim={batch_dim} is not a dimension of the closure's tensor of shape {tuple(t.shape)}: "
                "give the dimension that counts the examples"
            )


def _tensors(name: str, value: Any) -> list[Tensor]:
    tensors = [] if value is None else [value] if isinstance(value, Tensor) else value
    if isinstance(tensors, Sequence) and all(isinstance(t, Tensor) for t in tensors) and (tensors or value is None):
        return list(tensors)
    raise TypeError(f"the closure's {name} must be a tensor or a non-empty list of tensors, got {_described(value)}")


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


class _Holder(nn.Module):
    """Calls a function while ``functional_call`` has exchanged the parameters of the model within."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], T]) -> T:
        return function()


def forward_mode_jvp(replay: Replay, model: nn.Module, params: Sequence[Tensor], *, hidden: bool) -> Jvp:
    """v → J v by running the closure with dual numbers in the place of the model's parameters.

    Raises NotImplementedError at the first product if a kernel has no forward mode.

    Args:
        replay: the closure; it must call ``model`` itself.
        model: whose parameters are ``params``.
        params: in the order of v.
        hidden: the products of the hidden states follow those of the outputs.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    keys = [f"model.{names[id(p)]}" for p in params]
    holder = _Holder(model)

    def outputs(duals: Sequence[Tensor]) -> list[Tensor]:
        evaluation: Evaluation = functional_call(holder, dict(zip(keys, duals, strict=True)), (replay,))
        return [*evaluation.outputs, *(evaluation.hidden if hidden else ())]

    @torch.no_grad()
    def jvp(v: Sequence[Tensor]) -> list[Tensor]:
        values, tangents, _ = forward_mode(outputs, params, v)
        if all(tangent is None for tangent in tangents):
            raise ValueError(
                "the outputs of the closure do not depend on the model given to the optimizer: call that very "
                "module in the closure, or leave model out"
            )
        return [torch.zeros_like(a) if t is None else t for a, t in zip(values, tangents, strict=True)]

    return jvp
