"""SFO, the sum-of-functions optimizer: one quadratic model per minibatch, all in one small subspace."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from adaqn.baselines import sfo_choice as choice
from adaqn.baselines.sfo_evaluation import Closure, check_arguments, evaluate
from adaqn.baselines.sfo_options import SFOOptions, SFOStats, check_parameters, common_lr
from adaqn.baselines.sfo_state import SFOState, planned_bytes
from adaqn.baselines.sfo_step import grow, learn, move, rescale, retreat, skip, wrong_gradient
from adaqn.baselines.sfo_subspace import norm
from adaqn.core.checks import step_size
from adaqn.parameters.flat import FlatParameters, trainable
from adaqn.parameters.loading import entries_by_parameter, load_state


class SFO(Optimizer):
    """The sum-of-functions optimizer of Sohl-Dickstein, Poole and Ganguli (ICML 2014, arXiv:1311.2115).

    The objective is F(w) = Σ f_i(w) over N fixed minibatches. Each has a quadratic model g_i: its last loss and
    gradient, and a Hessian H_i by BFGS from the differences of its own gradients. One evaluation renews one
    model, and the step goes to the minimum of their sum,

        w ← w − η (Σ H_i)⁻¹ Σ ∇g_i(w),

    within a subspace spanned by the last positions and gradients of all minibatches: between K_min = 2N + 2 and
    K_max = 3N + 3 directions. η is 1, half as large after each bad update, and grows back.

    A minibatch must be the same function each time: no fresh dropout masks or augmentation. The authors advise
    25 minibatches or more, about √(examples)/10 of them for large data. Memory is 3N + 4 vectors as long as the
    parameters, and about 135 N² numbers (see :meth:`state_size`). Weights may be changed from outside between steps.

    Args:
        params: parameters, or groups of them; float32, float64 or complex.
        batches: N, the number of minibatches.
        lr: multiplies every step; the method needs no other than 1. The same for all groups.
        history_size: pairs of differences kept per minibatch.
        initial_curvature: the Hessian of the very first step. Large is safe: a step too short to change a
            gradient measurably is followed by one ten times as long.
        initial_active: minibatches that take part at first; more join as the mean gradient drowns in noise.
        max_condition: the largest condition number of an H_i.
        max_gradient_noise: standard error over length of the mean gradient above which another minibatch joins.
        max_step_ratio: the longest step over the mean of those before, after the first N evaluations.
        min_step: steps are no shorter, so that gradients change measurably; 0 turns it off.
        min_kept: a pair whose step keeps less of its length than this share when the subspace collapses is forgotten.
        order: what :meth:`next_index` follows, ``"distance"`` or ``"cyclic"``.
        maximize: go up instead.

    The constants are those of the authors' program; the paper's own text was not at hand to check them. Where this
    leaves the program: (1) Nothing is random: minibatches join in their order, the two measures of distance alternate
    instead of being drawn, and a collapsed subspace is not filled up with random directions. (2) Positions are kept
    relative to the current one, not to zero. (3) ``min_kept=0`` is the program, which keeps every pair; 0.7 was
    faster on the small problems tried. (4) The expected gain of a step is the model's, −∇G·d − ½ dᵀHd, also where
    the step was shortened; there the program takes ½ dᵀHd. (5) Differences of losses within rounding are no bad
    update, the first loss of a minibatch is compared with two others at least, and pairs are judged against the
    rounding of gradients instead of 1e-12. (6) A non-finite evaluation is skipped, and so is a gradient that the
    losses belie by far; three in a row are a bad update, six begin all models anew. (7) The subspace collapses when
    fewer than three directions are free, not one.

    >>> _ = torch.manual_seed(0)
    >>> data, w = torch.randn(10, 8, 3), torch.nn.Parameter(torch.zeros(3))
    >>> opt = SFO([w], batches=10)
    >>> for _ in range(60):
    ...     i = opt.next_index()
    ...     def closure():
    ...         opt.zero_grad()
    ...         loss = (data[i] @ w - 1.0).square().mean()
    ...         loss.backward()
    ...         return loss
    ...     _ = opt.step(closure, i)
    >>> best = torch.linalg.lstsq(data.reshape(-1, 3), torch.ones(80, 1)).solution[:, 0]
    >>> bool((w - best).norm() < 1e-3)
    True
    """

    needs: ClassVar[str] = "a closure that gives loss and gradients of one fixed minibatch, and that minibatch's index"

    def __init__(
        self,
        params: Any,
        *,
        batches: int,
        lr: float | Tensor = 1.0,
        history_size: int = 10,
        initial_curvature: float = 1e5,
        initial_active: int = 2,
        max_condition: float = 1e8,
        max_gradient_noise: float = 1.0,
        max_step_ratio: float = 10.0,
        min_step: float = 1e-8,
        min_kept: float = 0.7,
        order: str = "distance",
        maximize: bool = False,
    ) -> None:
        self.options = SFOOptions(
            batches, history_size, initial_curvature, initial_active, max_condition, max_gradient_noise,
            max_step_ratio, min_step, min_kept, order, maximize,
        )  # fmt: skip
        self._state: SFOState | None = None
        super().__init__(params, {"lr": lr})
        self._trainable()

    def next_index(self) -> int:
        """The minibatch to evaluate next; asking changes nothing.

        First those that take part and have fewer than two evaluations, so that each soon has a Hessian;
        then the one whose last evaluation lies farthest away. Minibatches whose last evaluation was not
        finite wait for N steps.
        """
        return 0 if self._state is None else choice.next_index(self._state, self.options.order)

    @torch.no_grad()
    def step(self, closure: Closure | None = None, index: int | None = None) -> Any:
        """Evaluate one minibatch, renew its model, and go to the minimum of the sum of models.

        Args:
            closure: calls ``zero_grad()``, computes the loss of minibatch ``index`` at the parameters as they
                are, calls ``backward()`` and returns the loss. After a bad update it is called again.
            index: of the minibatch, 0 to N − 1; :meth:`next_index` suggests one.

        Returns:
            the loss of the first call.
        """
        o = self.options
        closure, i = check_arguments(closure, index, o.batches, self.needs)
        lr = common_lr(self.param_groups)
        m = self._current_state()
        loss, point = evaluate(m.flat, closure, o.maximize)
        if lr == 0.0:
            return loss  # models of a point that is not left would only crowd the subspace
        if not point.finite:
            skip(m, o, i, lr)
            return loss
        if m.numbers.steps == 0:
            m.prior.copy_(point.w)
        m.make_room(o.min_kept)
        x = m.locate(point.w)
        if wrong_gradient(m, i, x, point):
            skip(m, o, i, lr)
            return loss
        eps = torch.finfo(m.flat.dtype).eps
        bad = choice.is_bad_update(m.model, i, x, point.f, m.numbers.gain, eps) and norm(point.w - m.prior) > 0.0
        points = retreat(m, o, closure, i, point, x) if bad else [point]
        if not points:
            skip(m, o, i, lr)
            return loss
        rescale(m, o, bad)
        learn(m, i, points)
        factor = move(m, o, points[-1].w, m.model.positions[i].clone(), lr)
        grow(m, o, factor, bad)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups of one optimizer share their model, and so their lr; none can join after the first step."""
        if self._state is not None:
            raise RuntimeError("SFO cannot take in parameters after its first step: build a new one with all of them")
        step_size("lr", {**self.defaults, **param_group}["lr"])
        super().add_param_group(param_group)
        try:
            check_parameters(self._parameters())
        except ValueError:
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ what a person reads

    @property
    def stats(self) -> SFOStats:
        """Totals so far."""
        if self._state is None:
            return SFOStats(0, 0, 0, 0, min(self.options.initial_active, self.options.batches), 0, 0, 0, 1.0)
        return self._state.stats()

    def state_size(self) -> int:
        """Bytes kept between steps, known before the first: 3N + 4 vectors, and about 135 N² numbers of float64."""
        flat = self._state.flat if self._state else FlatParameters(self._trainable())
        return planned_bytes(flat, self.options.batches, self.options.history_size)

    # ------------------------------------------------------------------ parameters and state

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _trainable(self) -> list[Tensor]:
        return trainable(self._parameters())

    def _current_state(self) -> SFOState:
        params = self._trainable()
        if self._state is None:
            self._state = SFOState(FlatParameters(params), self.options)
            self._show_state()
        elif not self._state.flat.covers(params):
            raise RuntimeError(
                f"the trainable parameters changed (from {len(self._state.flat.params)} tensors to {len(params)}, "
                "or their shape, dtype or device): the models of SFO do not fit them, so build a new one"
            )
        return self._state

    # ------------------------------------------------------------------ saving and loading

    def _show_state(self) -> None:
        self.state.clear()
        if self._state is not None:
            self.state.update(zip(self._state.flat.params, self._state.per_parameter(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers by parameter; may be saved and loaded at any step."""
        self._show_state()
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if it does not fit, one error and nothing is changed."""

        def restore(saved: dict[str, Any]) -> tuple[SFOState | None, dict[str, Any]]:
            everything, entries, state = self._parameters(), entries_by_parameter(saved), None
            if entries:
                params = [everything[i] for i in entries]
                if list(map(id, params)) != list(map(id, self._trainable())):
                    raise ValueError(
                        f"the saved state is of parameters {sorted(entries)}, and others require a gradient now: SFO "
                        "cannot change them in mid-training"
                    )
                state = SFOState(FlatParameters(params), self.options)
                state.check(list(entries.values()))
                state.restore(list(entries.values()))
            # torch would cast float64 and whole numbers to the parameters' dtype.
            return state, {**saved, "state": {}}

        def place(state: SFOState | None) -> None:
            self._state = state
            self._show_state()

        load_state(self, state_dict, check_groups=common_lr, restore=restore, place=place)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds.
        return {**super().__getstate__(), "options": self.options, "_state": self._state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_state" in state:  # a copy, not the loading of a state_dict
            self._show_state()
