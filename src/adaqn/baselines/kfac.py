"""K-FAC: natural gradient with a Kronecker product for each layer. (Martens and Grosse 2015)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adaqn.baselines.kfac_hooks import LossTerms, Recorder
from adaqn.baselines.kfac_layers import Block, find_blocks
from adaqn.baselines.kfac_options import (
    KFACOptions,
    KFACStats,
    check_gradients,
    check_model,
    check_numbers,
    check_seen,
    check_state,
    with_plain_counts,
)
from adaqn.baselines.kfac_step import Seen, all_finite, descend, directions, update_factors, update_inverses
from adaqn.core.checks import step_size
from adaqn.parameters.loading import entries_by_parameter, load_state

EAGER_STEPS = 3
"""In the first steps the factors change fast: their inverses are made every time. (Martens and Grosse, Alg. 2)"""


class KFAC(Optimizer):
    """Natural gradient with F ≈ A ⊗ G for each layer: A from its inputs, G from the gradients of its outputs.

    For each ``nn.Linear`` (the bias as one more column of W) and ``nn.Embedding`` (one-hot inputs, so A is diagonal):

        A ← ε A + (1 − ε) A_batch,  G likewise       ε = min(1 − 1/k, factor_decay)
        Δ = (G + √λ/π I)⁻¹ ∇W (A + π√λ I)⁻¹          λ = damping, π = √((tr A / p) / (tr G / q))
        v ← momentum v + ν Δ,  W ← W − lr v          ν = min(1, √(kl_clip / Σ lr² Δ·∇W))

    The loop is the ordinary one: zero_grad, forward, backward, step. Hooks see the model's forward passes in training
    mode with gradients on, and no others. Recurrent layers must call ``nn.Linear`` at every step, as ``LinearRNN`` and
    ``LinearLSTM`` of ``adaqn.experiments.problems.linear_recurrent`` do: ``nn.RNN`` hides its inputs. All calls of a
    layer in one backward pass are positions of the same examples; the first dimension of what a layer gets must be the
    batch.

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
        self.options = KFACOptions(
            fisher, sharing, loss_reduction, terms_per_example, factor_decay, factor_every,
            inverse_every, kl_clip, max_dimension, others, maximize,
        )  # fmt: skip
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"KFAC needs the model itself, an nn.Module, not its parameters: got {type(model).__name__}"
            )
        defaults = {"lr": lr, "damping": damping, "momentum": momentum, "weight_decay": weight_decay}
        check_numbers(defaults)
        if isinstance(lr, Tensor):
            defaults["lr"] = lr.reshape(())
        self.model = model
        self.blocks = find_blocks(model, max_dimension)
        rest = check_model(model, self.blocks, others)
        groups: list[dict[str, Any]] = [{"params": block.params, "name": block.name} for block in self.blocks]
        if rest:
            groups.append({"params": rest, "name": "others"})
        super().__init__(groups, defaults)
        terms = LossTerms(loss_reduction == "mean", terms_per_example, average_passes=fisher == "sampled")
        self._recorder = Recorder(self.blocks, expand=sharing == "expand", terms=terms)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a closure is run first if given. A batch that is not finite changes nothing but a counter."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if not isinstance(group["lr"], Tensor):  # which would be waited for
                step_size("lr", group["lr"])
        seen, params = self._recorder.collect(), self._parameters()
        check_gradients(params)
        if all(p.grad is None for p in params):
            return loss
        if not all_finite(loss, params, seen):
            self._count("nonfinite")
            return loss
        self._update(seen)
        self._count("steps" if self._move() else "nonfinite")
        self._note_due()
        return loss

    def _update(self, seen: Seen) -> None:
        """The factors from what was seen, and their inverses if they are due."""
        for block, pair in zip(self.blocks, seen, strict=True):
            if pair is None and not self._has_factors(block):
                check_seen(block, self.options.fisher)
        update_factors(self.state, self.blocks, seen, self.options.factor_decay)
        steps = self._counter("steps")
        due = steps < EAGER_STEPS or steps % self.options.inverse_every == 0
        known = [(block, group) for block, group in self._layers() if self._has_factors(block)]
        if update_inverses(self.state, known, due=due):
            self._count("inversions")

    def _move(self) -> bool:
        """Preconditioned gradients, bounded as one, into momentum and weights; not if they are not finite."""
        sign = -1.0 if self.options.maximize else 1.0
        moves, scale = directions(self.state, self._layers(), sign, self.options.kl_clip)
        if moves and scale is None:
            return False
        if scale is not None:
            scale = self._note_scale(scale)
            moves = [(group, [(p, scale * piece) for p, piece in pieces]) for group, pieces in moves]
        for group in self.param_groups[len(self.blocks) :]:
            moves.append((group, [(p, sign * p.grad) for p in group["params"] if p.grad is not None]))
        for group, pieces in moves:
            for p, piece in pieces:
                if p.grad is not None:
                    descend(self.state, group, p, piece)
        return True

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
        with self._recorder.sampling_for(self.model.parameters()):
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and what the hooks saw of the passes that made them."""
        super().zero_grad(set_to_none)
        if self.options.fisher == "empirical":
            self._recorder.clear()

    def remove_hooks(self) -> None:
        """Let go of the model; further steps use the factors as they are."""
        self._recorder.detach()
        self._recorder.clear()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only for the constructor: the groups are the layers of the model."""
        if hasattr(self, "_recorder"):
            raise RuntimeError("the groups of KFAC are the layers of its model: make a new optimizer for a new layer")
        super().add_param_group(param_group)

    # ------------------------------------------------------------------ layers and counts

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _first(self) -> Tensor:
        """The parameter whose state has the totals."""
        return self._parameters()[0]

    def _layers(self) -> list[tuple[Block, dict[str, Any]]]:
        return list(zip(self.blocks, self.param_groups, strict=False))  # a group of others may follow

    def _has_factors(self, block: Block) -> bool:
        return "A" in self.state.get(block.weight, {})

    def _counter(self, name: str) -> int:
        return int(self.state.get(self._first(), {}).get(name, 0))

    def _count(self, name: str) -> None:
        self.state[self._first()][name] = self._counter(name) + 1

    def _note_scale(self, scale: Tensor) -> Tensor:
        scale = scale.to(self._first().dtype)  # which is what loading makes of it
        self.state[self._first()]["kl_scale"] = scale
        return scale

    def _note_due(self) -> None:
        unseen = not all(map(self._has_factors, self.blocks))
        self._recorder.due = unseen or self._counter("steps") % self.options.factor_every == 0

    # ------------------------------------------------------------------ saving, loading and copying

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if its factors do not fit, one error and nothing is changed."""

        def check_groups(groups: Sequence[dict[str, Any]]) -> None:
            for group in groups:
                check_numbers(group)
                if not isinstance(group.get("name", ""), str):
                    raise TypeError(f"the name of a group must be text, got {type(group['name']).__name__}")

        def restore(saved: dict[str, Any]) -> tuple[None, dict[str, Any]]:
            check_state(self.blocks, self._parameters(), entries_by_parameter(saved))
            return None, {**saved, "state": with_plain_counts(saved["state"])}

        def place(_: None) -> None:
            self._recorder.clear()
            self._note_due()

        load_state(self, state_dict, check_groups=check_groups, restore=restore, place=place)

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
