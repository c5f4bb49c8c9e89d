"""K-FAC: natural gradient with a Kronecker product for each layer. (Martens and Grosse 2015)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from adaqn.baselines.kfac_base import LayerOptimizer
from adaqn.baselines.kfac_factors import clip_scale, damped_inverses, precondition, running_average
from adaqn.baselines.kfac_options import KFACOptions, KFACStats

EAGER_STEPS = 3
"""In the first steps the factors change fast: their inverses are made every time. (Martens and Grosse, Alg. 2)"""

Pieces = list[tuple[Tensor, Tensor]]
"""Parameters and what to add to their momentum."""


class KFAC(LayerOptimizer):
    """Natural gradient with F ≈ A ⊗ G for each layer: A from its inputs, G from the gradients of its outputs.

    For each ``nn.Linear`` (the bias as one more column of W) and ``nn.Embedding`` (one-hot inputs, so A is diagonal):

        A ← ε A + (1 − ε) A_batch,  G likewise       ε = min(1 − 1/k, factor_decay)
        Δ = (G + √λ/π I)⁻¹ ∇W (A + π√λ I)⁻¹          λ = damping, π = √((tr A / p) / (tr G / q))
        v ← momentum v + ν Δ,  W ← W − lr v          ν = min(1, √(kl_clip / Σ lr² Δ·∇W))

    The loop is the ordinary one: zero_grad, forward, backward, step. Hooks see the model's forward passes in training
    mode with gradients on, and no others. Recurrent layers must call ``nn.Linear`` at every step, as ``LinearRNN`` and
    ``LinearLSTM`` of ``adaqn.experiments.cells`` do: ``nn.RNN`` hides its inputs. All calls of a layer in one backward
    pass are positions of the same examples; the first dimension of what a layer gets must be the batch.

    Scale: A ⊗ G estimates the curvature of the loss that was differentiated. If that is a mean over the batch, each
    gradient carries 1/M for M = batch · ``terms_per_example`` loss terms, and G is M times the sum of their products;
    a language model whose loss is also a mean over T positions has ``terms_per_example=T``. (A wrong number
    only multiplies G, as would another damping and lr.) With ``loss_reduction="sum"`` G is the sum itself, and
    ``damping`` must grow with the batch to have the same effect. Do not scale the loss (``GradScaler``).

    Accumulating gradients over k backward passes: divide each loss by k, as for any optimizer, and the factors are
    those of the whole batch. ``zero_grad`` also forgets what was seen since the last step. A backward pass through
    only a part of the loss counts as a pass of its own.

    ``fisher="empirical"`` takes the gradients of the loss itself; where they vanish, so does G, and without ``kl_clip``
    steps near a minimum may grow without bound. The Fisher matrix of the paper needs targets drawn from the model's own
    predictions; draw them, and run one more backward pass that only feeds the factors (as often as you like, not at
    every step if that is too dear; several passes are averaged)::

        output = model(x)
        with opt.sampling():
            drawn = torch.distributions.Categorical(logits=output.detach()).sample()
            cross_entropy(output, drawn).backward(retain_graph=True)
        cross_entropy(output, y).backward()

    Each layer is a param group with its own ``lr``, ``damping``, ``momentum``, ``weight_decay`` (decoupled) and
    its ``name``.

    Where this leaves Martens and Grosse: the block-diagonal form only; lr and momentum are given rather than found with
    exact Fisher products, and the step is bounded by ν (after Ba et al. 2017, in its usual form) instead; λ is
    constant, or what you set in the groups, rather than adapted from 150, and there is no second search for γ; weight
    decay is decoupled; a factor wider than ``max_dimension`` is kept as its diagonal; with ``sharing="reduce"`` an
    embedding's A is the diagonal of its definition. ε and π are the paper's; ``inverse_every=20``, inverses at each of
    the first three steps and the start of λ at 150 are as we know them, not checked against its text. The defaults of
    lr, damping and kl_clip are common ones, not the paper's: tune lr and damping.

    Args:
        model: the module to train. Its layers are found here, so make the optimizer after the model is complete.
        lr: the step size, a number or a tensor.
        damping: λ.
        momentum: of heavy-ball type; 0 for none.
        weight_decay: w ← w − lr·weight_decay·w in every step.
        fisher: ``"empirical"`` or ``"sampled"``.
        sharing: ``"expand"`` or ``"reduce"``, for weights used at several positions (Eschenhagen et al. 2023).
        loss_reduction: ``"mean"`` or ``"sum"`` over the batch.
        terms_per_example: loss terms per example, if the loss is their mean.
        factor_decay: the limit of ε.
        factor_every: steps between updates of the factors from the loss; sampled ones are updated by sampling.
        inverse_every: steps between inversions.
        kl_clip: κ, or ``None`` for no bound.
        max_dimension: the widest factor that is kept as a matrix.
        others: ``"refuse"`` parameters that are in no such layer, or train them by ``"sgd"`` with momentum, with the
            lr of the group named "others".
        maximize: go up instead of down.

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> opt = KFAC(model, lr=0.1)
    >>> x, y = torch.randn(16, 3), torch.randn(16, 1)
    >>> for _ in range(5):
    ...     opt.zero_grad()
    ...     nn.functional.mse_loss(model(x), y).backward()
    ...     opt.step()
    >>> opt.stats.steps, opt.stats.inversions
    (5, 3)
    """

    needs: ClassVar[str] = (
        "loss.backward() through the model in training mode before every step; with fisher='sampled' also a "
        "backward pass inside sampling()"
    )

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 0.1,
        *,
        damping: float = 1e-2,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        fisher: str = "empirical",
        sharing: str = "expand",
        loss_reduction: str = "mean",
        terms_per_example: int = 1,
        factor_decay: float = 0.95,
        factor_every: int = 1,
        inverse_every: int = 20,
        kl_clip: float | None = 1e-3,
        max_dimension: int = 2048,
        others: str = "refuse",
        maximize: bool = False,
    ) -> None:
        options = KFACOptions(
            fisher, sharing, loss_reduction, terms_per_example, factor_decay, factor_every,
            inverse_every, kl_clip, max_dimension, others, maximize,
        )  # fmt: skip
        defaults = {"lr": lr, "damping": damping, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(model, options, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a closure is run first if given. A batch that is not finite changes nothing but a counter."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if not isinstance(group["lr"], Tensor) and not group["lr"] >= 0.0:
                raise ValueError(f"lr must be at least 0, got {group['lr']}: was it set by a scheduler?")
        seen = self._recorder.collect()
        self._check_dense()
        if not self._has_gradients():
            return loss
        if not self._is_finite(loss, seen):
            self._count("nonfinite")
            return loss
        self._check_seen(seen)
        self._update_factors(seen)
        self._update_inverses()
        self._count("steps" if self._move() else "nonfinite")
        self._note_due()
        return loss

    def _update_factors(self, seen: list[tuple[Tensor, Tensor] | None]) -> None:
        for block, pair in zip(self.blocks, seen, strict=True):
            if pair is None:
                continue
            state = self.state[block.weight]
            state["estimates"] = count = state.get("estimates", 0) + 1
            for name, new in zip(("A", "G"), pair, strict=True):
                state[name] = running_average(state.get(name), new, count, self.options.factor_decay)

    def _update_inverses(self) -> None:
        steps = self._counter("steps")
        due = steps < EAGER_STEPS or steps % self.options.inverse_every == 0
        known = [block for block in self.blocks if "A" in self.state.get(block.weight, {})]
        stale = [block for block in known if due or "A_inverse" not in self.state[block.weight]]
        for block in stale:
            state = self.state[block.weight]
            damping = self._group(block)["damping"]
            state["A_inverse"], state["G_inverse"] = damped_inverses(state["A"], state["G"], damping)
        if stale:
            self._count("inversions")

    def _move(self) -> bool:
        """Preconditioned gradients, bounded as one, into momentum and weights; not if they are not finite."""
        sign = -1.0 if self.options.maximize else 1.0
        moves: list[tuple[dict[str, Any], Pieces]] = []
        products = []
        for block in self.blocks:
            gradient = block.gradient()
            if gradient is not None:
                state, group = self.state[block.weight], self._group(block)
                delta = precondition(sign * gradient, state["A_inverse"], state["G_inverse"])
                products.append(sign * (delta * gradient).sum().double() * group["lr"] ** 2)
                moves.append((group, list(zip(block.params, block.split(delta), strict=True))))
        if products:
            # An entry of Δ that is not finite makes Δ·∇ infinite or NaN, whatever the gradient: one flag tells of all.
            if not bool(torch.stack(products).isfinite().all()):
                return False
            scale = self._note_scale(clip_scale(products, self.options.kl_clip))
            moves = [(group, [(p, scale * piece) for p, piece in pieces]) for group, pieces in moves]
        for group in self.param_groups[len(self.blocks) :]:
            moves.append((group, [(p, sign * p.grad) for p in group["params"] if p.grad is not None]))
        for group, pieces in moves:
            for p, piece in pieces:
                if p.grad is not None:
                    self._descend(group, p, piece)
        return True

    def _descend(self, group: dict[str, Any], p: Tensor, direction: Tensor) -> None:
        if group["momentum"]:
            # Never in place: a state_dict that was taken keeps what it holds.
            velocity = self.state[p].get("momentum")
            direction = direction.contiguous() if velocity is None else group["momentum"] * velocity + direction
            self.state[p]["momentum"] = direction
        if group["weight_decay"]:
            p.mul_(1.0 - group["lr"] * group["weight_decay"])
        p.sub_(group["lr"] * direction)


__all__ = ["KFAC", "KFACStats"]
