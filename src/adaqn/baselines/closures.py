"""Closures that return a loss and its outputs with their graphs: called, checked, and called again the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaqn.baselines.gauss_newton import Jvp

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
        self.closure, self.sign = closure, sign
        self.modules: list[Any] = [torch.random]
        self.devices: list[torch.device] = []
        if device.type not in ("cpu", "meta"):
            self.modules.append(torch.get_device_module(device))
            self.devices.append(device)
        self.states: list[Tensor] | None = None

    def __call__(self) -> Evaluation:
        if self.states is None:
            self.states = [module.get_rng_state() for module in self.modules]
            return checked(self.closure(), self.sign)
        with ExitStack() as stack:
            kinds = {"device_type": self.devices[0].type} if self.devices else {}
            stack.enter_context(torch.random.fork_rng(devices=[d.index or 0 for d in self.devices], **kinds))
            for module, state in zip(self.modules, self.states, strict=True):
                module.set_rng_state(state)
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
    holder, ad = _Holder(model), torch.autograd.forward_ad

    def jvp(v: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad(), ad.dual_level():
            duals = [ad.make_dual(p.detach(), t.contiguous()) for p, t in zip(params, v, strict=True)]  # type: ignore[no-untyped-call]
            evaluation = functional_call(holder, dict(zip(keys, duals, strict=True)), (replay,))
            tensors = [*evaluation.outputs, *(evaluation.hidden if hidden else ())]
            pairs = [ad.unpack_dual(t) for t in tensors]  # type: ignore[no-untyped-call]
        if all(tangent is None for _, tangent in pairs):
            raise ValueError(
                "the outputs of the closure do not depend on the model given to the optimizer: call that very "
                "module in the closure, or leave model out"
            )
        return [torch.zeros_like(value) if tangent is None else tangent for value, tangent in pairs]

    return jvp


def with_fallback(first: Jvp, second: Callable[[], Jvp]) -> Jvp:
    """``first`` until it turns out not to be implemented, then ``second()``, made once."""
    made: list[Jvp] = []

    def jvp(v: Sequence[Tensor]) -> list[Tensor]:
        if not made:
            try:
                return first(v)
            except NotImplementedError:
                made.append(second())
        return made[0](v)

    return jvp
