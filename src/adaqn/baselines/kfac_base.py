"""What surrounds K-FAC: layers and hooks, sampling, counting, saving and copying."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adaqn.baselines.kfac_hooks import Recorder, Scaling
from adaqn.baselines.kfac_layers import Block, find_blocks
from adaqn.baselines.kfac_options import KFACOptions, KFACStats, check_group, check_model, check_state

Seen = list[tuple[Tensor, Tensor] | None]


class LayerOptimizer(Optimizer):
    """An optimizer of a model's layers, each a param group, that sees their inputs and gradients."""

    def __init__(self, model: nn.Module, options: KFACOptions, defaults: dict[str, Any]) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"KFAC needs the model itself, an nn.Module, not its parameters: got {type(model).__name__}"
            )
        check_group(defaults)
        if isinstance(defaults["lr"], Tensor):
            defaults["lr"] = defaults["lr"].reshape(())
        self.model, self.options = model, options
        self.blocks = find_blocks(model, options.max_dimension)
        rest = check_model(model, self.blocks, options.others)
        groups: list[dict[str, Any]] = [{"params": block.params, "name": block.name} for block in self.blocks]
        if rest:
            groups.append({"params": rest, "name": "others"})
        super().__init__(groups, defaults)
        sampled = options.fisher == "sampled"
        scaling = Scaling(options.loss_reduction == "mean", options.terms_per_example, average_passes=sampled)
        self._recorder = Recorder(self.blocks, expand=options.sharing == "expand", scaling=scaling)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only for the constructor: the groups are the layers of the model."""
        if hasattr(self, "_recorder"):
            raise RuntimeError("the groups of KFAC are the layers of its model: make a new optimizer for a new layer")
        super().add_param_group(param_group)

    # ------------------------------------------------------------------ what a person uses

    @property
    def stats(self) -> KFACStats:
        """Totals so far."""
        scale = self.state.get(self._first(), {}).get("kl_scale")
        return KFACStats(
            self._counter("steps"),
            self._counter("nonfinite"),
            self._counter("inversions"),
            len(self.blocks),
            1.0 if scale is None else float(scale),
        )

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Backward passes inside, of a loss at targets drawn from the model's predictions, only feed the factors.

        The gradients of the parameters are the same after the block as before it. The forward pass may lie outside.
        """
        if self.options.fisher != "sampled":
            raise RuntimeError(f"sampling() is for fisher='sampled', and this KFAC has {self.options.fisher!r}")
        if self._recorder.sampling:
            raise RuntimeError("sampling() was entered twice: leave the first block before the second")
        kept = [(p, p.grad) for p in self.model.parameters()]
        for p, _ in kept:
            p.grad = None
        self._recorder.sampling = True
        try:
            yield
        finally:
            self._recorder.sampling = False
            for p, gradient in kept:
                p.grad = gradient

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and what the hooks saw of the passes that made them."""
        super().zero_grad(set_to_none)
        if self.options.fisher == "empirical":
            self._recorder.clear()

    def remove_hooks(self) -> None:
        """Let go of the model; further steps use the factors as they are."""
        self._recorder.detach()
        self._recorder.clear()

    # ------------------------------------------------------------------ checks and counts of a step

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _first(self) -> Tensor:
        """The parameter whose state has the totals."""
        return self._parameters()[0]

    def _group(self, block: Block) -> dict[str, Any]:
        return self.param_groups[self.blocks.index(block)]

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for p in self._parameters())

    def _check_dense(self) -> None:
        for p in self._parameters():
            if p.grad is not None and p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"a parameter of shape {tuple(p.shape)} has a sparse gradient ({p.grad.layout}), and KFAC needs "
                    "dense ones: build the layer with sparse=False"
                )

    def _is_finite(self, loss: Any, seen: Seen) -> bool:
        tensors = [p.grad for p in self._parameters() if p.grad is not None]
        tensors += [factor for pair in seen if pair is not None for factor in pair]
        if isinstance(loss, Tensor):
            tensors.append(loss.detach())
        return bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())

    def _check_seen(self, seen: Seen) -> None:
        for block, pair in zip(self.blocks, seen, strict=True):
            missing = pair is None and "A" not in self.state.get(block.weight, {})
            if missing and any(p.grad is not None for p in block.params):
                remedy = (
                    "run a backward pass inside sampling() first"
                    if self.options.fisher == "sampled"
                    else "make the optimizer before the forward pass, have the model in training mode, and call the "
                    "layer rather than use its weight"
                )
                raise RuntimeError(f"layer {block.name!r} has a gradient, but no call of it was seen: {remedy}")

    def _counter(self, name: str) -> int:
        return int(self.state.get(self._first(), {}).get(name, 0))

    def _count(self, name: str) -> None:
        self.state[self._first()][name] = self._counter(name) + 1

    def _note_scale(self, scale: Tensor) -> Tensor:
        scale = scale.to(self._first().dtype)  # which is what loading makes of it
        self.state[self._first()]["kl_scale"] = scale
        return scale

    def _note_due(self) -> None:
        unseen = any("A" not in self.state.get(block.weight, {}) for block in self.blocks)
        self._recorder.due = unseen or self._counter("steps") % self.options.factor_every == 0

    # ------------------------------------------------------------------ saving, loading and copying

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if its factors do not fit, one error and nothing is changed."""
        check_state(self.blocks, state_dict)
        super().load_state_dict(state_dict)
        self._recorder.clear()
        self._note_due()

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds.
        own = ("model", "options", "blocks", "_recorder")
        hooked = {"_hooked": self._recorder.attached}
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}, **hooked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        hooked = state.pop("_hooked", False)
        super().__setstate__(state)
        if hooked:  # a copy, not the loading of a state_dict
            self._recorder.attach(self.blocks)
