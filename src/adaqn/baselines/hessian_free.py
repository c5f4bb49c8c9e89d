"""Hessian-free optimization: Newton steps by conjugate gradients on Gauss-Newton products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adaqn.baselines.closures import Evaluation, GraphClosure, Replay, check_batch_dim, forward_mode_jvp
from adaqn.baselines.conjugate_gradients import Solution, conjugate_gradients
from adaqn.baselines.gauss_newton import GaussNewton, cases, diagonal_preconditioner, fisher_diagonal
from adaqn.baselines.hessian_free_options import (
    HessianFreeOptions,
    HessianFreeStats,
    check_parameters,
    saved_stats,
)
from adaqn.baselines.newton_step import Taken, Weights, damped_product, loss_gradient, searched
from adaqn.baselines.step_control import adjusted_damping
from adaqn.core.checks import step_size
from adaqn.core.jacobian import Jvp, double_backward_jvp, with_fallback
from adaqn.parameters.flat import trainable
from adaqn.parameters.loading import load_state


class HessianFree(Optimizer):
    """Hessian-free optimization (Martens 2010), with structural damping for recurrent nets (with Sutskever, 2011).

    Each step minimizes the model gᵀd + ½ dᵀ(G + λI + λμ J_hᵀJ_h)d by preconditioned conjugate gradients, with
    G = JᵀH_L J the generalized Gauss-Newton matrix; takes the best of the kept iterates by the real loss; shortens it
    by an Armijo line search; and adapts λ by the reduction ratio ρ. The closure must evaluate the same batch whenever
    it is called: it is called once with a graph and then without for each trial point, with the same random numbers
    (and layers with running statistics, such as BatchNorm, update them every time).

    The loss is assumed convex in the outputs (cross entropy of logits, squared error), so that G is positive
    semidefinite. Where it is not, conjugate gradients end at the first direction of negative curvature and λ grows
    until there is none. Terms of the loss that bypass the outputs, such as a penalty of the weights, enter the
    gradient and the loss but not G. The loss is taken for a mean over the examples.

    Where this leaves the original:

    - The squared gradients in the preconditioner (Σ g_i² + λ)^0.75 are a mean, as the loss is, and estimated from
      random signs on the outputs (``fisher_diagonal``): autograd gives no sum of squares. With a batch of its own for
      the curvature they are of that batch.
    - A warm start that the model likes less than zero is dropped, so that every iterate is a direction of descent.
    - ρ compares losses of the gradient's batch, at the chosen iterate before the line search; its model is without
      damping, as in Martens' code, which takes the curvature's batch.
    - λ stays between 1e-10 and 1e10; 0 stays 0.
    - Structural damping takes the squared distance of hidden states, averaged over ``batch_dim`` and summed over time
      and units; the 2011 paper also tries the distance that matches the nonlinearity.

    5e-4, max(10, 0.1 i), 1.3, 250 iterations, 0.95, 0.75, 2/3, 1/4, 3/4 and the line search's 0.01, 0.8 and 60 are
    those of Martens' published code. The first λ depends on the problem (45 there, for losses summed over many
    outputs); 0.1 is our choice for mean losses. μ = 1/30, as we remember the 2011 paper, could not be checked.

    Args:
        params: float32 or float64 parameters, or groups with their own ``lr``.
        lr: scales the step; 1 is the method. With Λ the diagonal of the groups' lr, d = Λ^½ x solves
            (G + λI + …) x = −Λ^½ g, which descends for any lr and freezes a group with lr 0.
        damping: the first λ; 0 for none at any time.
        structural_damping: μ; needs hidden states from the closure.
        damping_factor: λ is multiplied by it if ρ > 3/4 and divided by it if ρ < 1/4.
        warm_start: conjugate gradients start from the last solution times this; 0 to start from zero.
        min_cg_iterations: the stopping rule is not asked before.
        max_cg_iterations: not more. About nine vectors as long as the parameters are kept per factor ten.
        cg_tolerance: ε of the stopping rule.
        preconditioner: ``"fisher"`` (eight backward passes a step), ``"gradient"`` (the squared batch gradient in its
            place, free) or ``"none"`` (no worse for recurrent nets, according to a comment in Martens' code).
        batch_dim: the dimension of the outputs and of the hidden states that counts the examples.
        model: if given, J v is found in forward mode, by calling the closure with dual numbers in this module's
            parameters, where its kernels have one (the float32 LSTM on a CPU has none). Saves the memory of the
            double backward for one more forward pass a product. cuDNN's recurrent kernels have neither: step under
            ``torch.backends.cudnn.flags(enabled=False)``.
        maximize: maximize the loss, which must then be concave in the outputs.

    >>> net = nn.Linear(3, 1)
    >>> x, y = torch.randn(20, 3), torch.randn(20, 1)
    >>> opt = HessianFree(net.parameters())
    >>> def closure():
    ...     outputs = net(x)
    ...     return nn.functional.mse_loss(outputs, y), outputs
    >>> first = opt.step(closure)
    >>> bool(opt.step(closure) < first)
    True
    """

    needs: ClassVar[str] = "step(closure), which returns (loss, outputs[, hidden_states]) and does not call backward"

    def __init__(
        self,
        params: Any,
        *,
        lr: float | Tensor = 1.0,
        damping: float = 0.1,
        structural_damping: float = 0.0,
        damping_factor: float = 2 / 3,
        warm_start: float = 0.95,
        min_cg_iterations: int = 1,
        max_cg_iterations: int = 250,
        cg_tolerance: float = 5e-4,
        preconditioner: str = "fisher",
        batch_dim: int = 0,
        model: nn.Module | None = None,
        maximize: bool = False,
    ) -> None:
        self.options = HessianFreeOptions(
            damping, structural_damping, damping_factor, warm_start, min_cg_iterations, max_cg_iterations,
            cg_tolerance, preconditioner, batch_dim, model, maximize,
        )  # fmt: skip
        self._forward_mode = model is not None
        self._stats = HessianFreeStats(damping=damping)
        super().__init__(params, {"lr": lr})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group with its own lr; the other options are for all parameters at once."""
        step_size("lr", param_group.get("lr", self.defaults["lr"]))
        super().add_param_group(param_group)
        try:
            check_parameters([p for group in self.param_groups for p in group["params"]], self.options.model)
        except ValueError:
            self.param_groups.pop()
            raise

    @property
    def stats(self) -> HessianFreeStats:
        """Totals so far, and how the last step went."""
        return self._stats

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: GraphClosure | None = None, curvature_closure: GraphClosure | None = None
    ) -> Tensor:
        """One Hessian-free step; returns the loss before it.

        Args:
            closure: returns ``(loss, outputs)`` or ``(loss, outputs, hidden_states)`` with graphs and does not call
                backward. Outputs and hidden states are a tensor or a list of tensors; the loss is computed from the
                outputs.
            curvature_closure: the same for another batch, usually a smaller one, which then gives G and the hidden
                states, while the first gives the gradient and all losses that are compared.
        """
        weights = Weights(self._trainable())
        replay, batch = self._evaluate(closure, weights)
        other = curvature_closure is not None
        g = weights.joined(loss_gradient(batch.loss, weights.params, keep=not other))  # else its graph is free now
        curved_replay, curved = self._evaluate(curvature_closure, weights) if other else (replay, batch)
        loss = batch.loss.detach() * replay.sign
        if not bool(batch.loss.isfinite() & curved.loss.isfinite() & g.isfinite().all()):
            return self._skipped(loss)
        curvature = self._curvature(curved_replay, curved, weights)
        if not all(slope.isfinite().all() for slope in curvature.slope):
            return self._skipped(loss)
        scale = self._scale(weights)
        solution = self._solve(curvature, curved, g, scale, weights)
        taken = searched(solution, scale, g, float(batch.loss), curvature, weights, replay.loss)
        self._remember(weights, solution, taken)
        return loss

    # ------------------------------------------------------------------ the parts of a step

    def _trainable(self) -> list[Tensor]:
        params = trainable(p for group in self.param_groups for p in group["params"])
        check_parameters(params, self.options.model)
        for group in self.param_groups:
            step_size("lr", group["lr"])  # a scheduler may have set it
        return params

    def _evaluate(self, closure: GraphClosure | None, weights: Weights) -> tuple[Replay, Evaluation]:
        if not callable(closure):
            raise TypeError(f"HessianFree needs {self.needs}; got {closure!r}")
        replay = Replay(closure, weights.flat.device, -1.0 if self.options.maximize else 1.0)
        batch = replay.with_graph()
        check_batch_dim([*batch.outputs, *batch.hidden], self.options.batch_dim)
        return replay, batch

    def _skipped(self, loss: Tensor) -> Tensor:
        self._stats = replace(self._stats, nonfinite=self._stats.nonfinite + 1)
        return loss

    def _curvature(self, replay: Replay, batch: Evaluation, weights: Weights) -> GaussNewton:
        """G and, for structural damping, J_hᵀJ_h; J v in forward mode where model and kernels allow."""
        model, params = self.options.model, weights.params
        hidden = batch.hidden if self.options.structural_damping > 0.0 else []
        if self.options.structural_damping > 0.0 and not hidden:
            raise ValueError(
                f"structural_damping={self.options.structural_damping} needs the hidden states: let the closure return "
                "(loss, outputs, hidden_states), or set it to 0"
            )
        if model is None or not self._forward_mode:
            return GaussNewton(batch.loss, batch.outputs, params, hidden)

        def instead() -> Jvp:
            self._forward_mode = False
            return double_backward_jvp([*batch.outputs, *hidden], params)

        jvp = with_fallback(forward_mode_jvp(replay, model, params, hidden=bool(hidden)), instead)
        return GaussNewton(batch.loss, batch.outputs, params, hidden, jvp)

    def _scale(self, weights: Weights) -> Tensor:
        """Λ^½ as a vector."""
        lrs = [float(group["lr"]) for group in self.param_groups for p in group["params"] if p.requires_grad]
        return weights.joined([torch.full_like(p, lr) for p, lr in zip(weights.params, lrs, strict=True)]).sqrt_()

    def _solve(self, curvature: GaussNewton, batch: Evaluation, g: Tensor, scale: Tensor, weights: Weights) -> Solution:
        """(G + λI + λμ J_hᵀJ_h) x = −Λ^½ g, from the last solution, decayed."""
        o, damping = self.options, self._stats.damping
        structural = damping * o.structural_damping / cases(batch.hidden[0], o.batch_dim) if curvature.hidden else 0.0
        last = [self.state[p].get("direction") if p in self.state else None for p in weights.params]
        start = None
        if o.warm_start > 0.0 and any(t is not None for t in last):
            known = [torch.zeros_like(p) if t is None else t for p, t in zip(weights.params, last, strict=True)]
            start = weights.joined(known).mul_(o.warm_start)
        return conjugate_gradients(
            damped_product(curvature, weights, damping, structural),
            scale * -g,
            start,
            preconditioner=self._preconditioner(curvature, g, weights),
            min_iterations=o.min_cg_iterations,
            max_iterations=o.max_cg_iterations,
            tolerance=o.cg_tolerance,
        )

    def _preconditioner(self, curvature: GaussNewton, g: Tensor, weights: Weights) -> Tensor | None:
        if self.options.preconditioner == "none":
            return None
        squares = g * g
        if self.options.preconditioner == "fisher":
            # Its own generator, seeded by the step: a resumed run draws the same signs, and the user's stay the user's.
            generator = torch.Generator().manual_seed(self._stats.steps)
            parts = (curvature.slope, curvature.outputs, curvature.params)
            squares = weights.joined(fisher_diagonal(*parts, batch_dim=self.options.batch_dim, generator=generator))
        return diagonal_preconditioner(squares, self._stats.damping)

    def _remember(self, weights: Weights, solution: Solution, taken: Taken) -> None:
        """Count, adapt λ, and keep the last iterate, not the chosen one, for the next start (as Martens' code does)."""
        s, rho = self._stats, taken.rho
        if solution.x.isfinite().all():
            for p, piece in zip(weights.params, weights.pieces(solution.x), strict=True):
                self.state[p]["direction"] = piece.clone()
        self._stats = HessianFreeStats(
            steps=s.steps + 1,
            nonfinite=s.nonfinite,
            rejected=s.rejected + (rho is not None and taken.rate == 0.0),
            cg_iterations=s.cg_iterations + solution.iterations,
            evaluations=s.evaluations + taken.evaluations,
            damping=s.damping if rho is None else adjusted_damping(s.damping, rho, self.options.damping_factor),
            reduction_ratio=s.reduction_ratio if rho is None else rho,
            rate=taken.rate,
        )

    # ------------------------------------------------------------------ saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers by parameter; may be saved and loaded at any step."""
        if self._stats.steps or self._stats.nonfinite:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].update(asdict(self._stats))
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if it does not fit, one error and nothing is changed."""

        def check_groups(groups: Sequence[dict[str, Any]]) -> None:
            for group in groups:
                step_size("lr", group["lr"])

        def restore(saved: dict[str, Any]) -> tuple[HessianFreeStats | None, dict[str, Any]]:
            return saved_stats(saved, [p for group in self.param_groups for p in group["params"]]), saved

        def place(stats: HessianFreeStats | None) -> None:
            self._stats = stats or HessianFreeStats(damping=self.options.damping)

        load_state(self, state_dict, check_groups=check_groups, restore=restore, place=place)

    def __getstate__(self) -> dict[str, Any]:
        own = ("options", "_forward_mode", "_stats")  # torch's own leaves out whatever a subclass adds
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}
