"""The methods: for each a signature, a docstring and a choice of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from adaqn.core.acceptance import Acceptance
from adaqn.core.curvature import Curvature
from adaqn.core.direction import Direction
from adaqn.core.pairs import CurvatureTest
from adaqn.core.scaling import Scaling
from adaqn.optim.events import CycleCallback, callbacks
from adaqn.optim.memory import Precision
from adaqn.optim.options import (
    Options,
    choose,
    make_acceptance,
    make_curvature,
    make_curvature_test,
    make_cycle,
    make_damping,
    make_direction,
    make_h0,
    make_momentum,
)
from adaqn.optim.presets import chosen
from adaqn.optim.quasi_newton import QuasiNewton


class AdaQN(QuasiNewton):
    r"""adaQN (Keskar and Berahas): L-BFGS pairs from averaged iterates and an accumulated Fisher matrix.

    .. math::
        w \leftarrow w - \alpha H g, \quad
        H = \mathrm{LBFGS}\big(S, Y, H_0 = 1/\sqrt{\textstyle\sum g^2 + \epsilon}\big)

    and every ``cycle_length`` steps, with :math:`\bar w` the average of the cycle,
    :math:`s = \bar w - \bar w_{\text{anchor}}` and :math:`y = \frac{1}{|F|}\sum_i g_i (g_i \cdot s)`
    over the last ``fisher_size`` gradients: rejected if the monitored loss got worse, stored if
    :math:`s \cdot y > \epsilon\, s \cdot s`.

    Args:
        params: parameters or param groups, which may have their own ``lr`` and ``weight_decay``.
        lr: the step size α; may be 0, and may be a tensor. By default the preset's.
        monitor: a function without arguments that returns the loss on a fixed batch of the training
            split, as a scalar or per example; see :class:`adaqn.Monitor`. Its ``advance()``, if it has
            one, is called once per cycle. Also an attribute, for frameworks that build the optimizer.
            Without one nothing is rejected by its loss.
        preset: what is not given: ``"kronecker"``, the default: SOAP's scaling, momentum, a short and fresh memory and
            tests that know scale and noise; ``"modern"``, the same with Adam's scaling; ``"paper"``
            (``adaqn.PRESETS`` lists them).
        cycle_length: steps per cycle, the paper's L; ``"auto"`` lets the quality of the pairs decide
            (:mod:`adaqn.core.cycle`), from 5 on.
        min_cycle_length: the lower bound of ``"auto"``.
        max_cycle_length: its upper bound.
        memory_size: curvature pairs kept, the paper's m_L.
        fisher_size: gradients kept for the Fisher matrix, the paper's m_F.
        curvature_eps: ε of the curvature test.
        scaling_eps: ε of H0; by default 1e-4 for Adagrad's as in the paper, 1e-8 for the others as in torch.
        reject_factor: γ, by how much the monitored loss may grow before a cycle is rejected.
        momentum: β of the averaged gradient that the recursion sees, bias corrected as in Adam; H0 and F̃ see the
            gradient itself. 0 is none.
        nesterov: look one step ahead in that average, as NAdam does.
        momentum_on_reject: ``"reset"`` or ``"keep"`` the averaged gradient when a cycle is rejected.
        scaling: H0, one of ``"adagrad"`` (the paper's), ``"rmsprop"``, ``"adam"``, ``"kronecker"`` (SOAP's, not
            diagonal: :class:`adaqn.core.kronecker.Kronecker`), ``"barzilai_borwein"``, ``"identity"``, or a
            :class:`adaqn.core.scaling.Scaling` of your own.
        curvature: ``"accumulated_fisher"``, or an :class:`adaqn.EmpiricalFisher`, which needs no F̃ in memory.
        fisher_batch_size: examples per gradient; divides the Fisher matrix as in the paper's equation
            for it rather than as in its line 18 (D4).
        damping: y is mixed with H0⁻¹s until s·y is at least this share of s·H0⁻¹s: no pair lengthens a step by more
            than its inverse. 0 is none, the paper's.
        curvature_test: ``"absolute"`` (the paper's s·y > ε s·s), ``"scale_free"`` (s·y > ε‖s‖‖y‖), or a function
            ``(ss, sy, yy, eps) -> bool``.
        acceptance: ``"factor"``, ``"relative"`` (the same test in the paper's other form, D12), ``"paired"`` (worse by
            more than ``paired_level`` standard errors of the paired differences of per-example losses; the factor test
            where the monitor returns a scalar, and a warning), ``"auto"`` (the same without the warning),
            ``"none"``, or a function ``(new, old) -> rejected`` of the losses at both points, tensors to be made
            small (negated if ``maximize``).
        anchor_patience: skips in a row after which the anchor moves on all the same (D6); ``None`` never.
        reject_patience: rejections in a row with an empty memory after which the steps are halved (D11);
            ``None`` never. Without effect where there is a ``reject_window``.
        reject_window: a rejection within so many cycles of another one halves the steps, and the first cycle is judged
            too, against the weights before it (D15); 0 is ``reject_patience``'s rule.
        reset_scaling_on_reject: forget H0's accumulator too when a cycle is rejected (D3).
        on_nonfinite: ``"skip"`` a gradient that is not finite (D9), or ``"raise"``.
        direction: ``"gram"`` or ``"two_loop"``: the same numbers, the second slower and as printed.
        history_dtype: ``torch.bfloat16`` halves the memory of the pairs.
        fisher_dtype: ``torch.bfloat16`` halves that of F̃.
        fisher_device: where F̃ lives, for instance ``"cpu"``; by default beside the parameters.
        master_weights: keep float32 copies of bfloat16 or float16 parameters, and step on those. After changing
            the weights yourself call ``reset_history()``: the copies would undo the change.
        weight_decay: decoupled, as in AdamW.
        maximize: maximize the objective; the monitor then returns what is to be large.
        on_cycle: called with a :class:`adaqn.CycleEvent` at the end of each cycle; or several, in a list. What one
            raises comes out of ``step()``, when the cycle is complete (``docs/logging.md``).
        process_group: the processes that train this model together, under ``torchrun``; ``None`` is all of them, where
            there are several, and ``"none"`` this one alone.
        shard_history: with DDP, keep a share of the history in each process (``docs/distributed.md``).

    >>> model = torch.nn.Linear(4, 1)
    >>> x, target = torch.randn(64, 4), torch.randn(64, 1)
    >>> loss_fn = torch.nn.MSELoss()
    >>> from adaqn import Monitor
    >>> opt = AdaQN(model.parameters(), lr=1e-2, monitor=Monitor(model, loss_fn, (x, target)))
    >>> for _ in range(15):
    ...     opt.zero_grad()
    ...     loss_fn(model(x), target).backward()
    ...     _ = opt.step()
    >>> opt.stats.cycles
    3
    """

    needs: ClassVar[str] = "step() after backward(); for the rejection test monitor=Monitor(model, loss_fn, batch)"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None = None,
        *,
        monitor: Callable[[], Any] | None = None,
        preset: str = "default",
        cycle_length: int | str | None = None,
        min_cycle_length: int = 2,
        max_cycle_length: int = 20,
        memory_size: int | None = None,
        fisher_size: int | None = None,
        curvature_eps: float = 1e-4,
        scaling_eps: float | None = None,
        reject_factor: float = 1.01,
        paired_level: float = 3.0,
        scaling: str | Scaling | None = None,
        momentum: float | None = None,
        nesterov: bool | None = None,
        momentum_on_reject: str = "reset",
        curvature: str | Curvature = "accumulated_fisher",
        fisher_batch_size: int | None = None,
        damping: float | None = None,
        curvature_test: str | CurvatureTest | None = None,
        acceptance: str | Acceptance | None = None,
        anchor_patience: int | None = 20,
        reject_patience: int | None = 3,
        reject_window: int | None = None,
        reset_scaling_on_reject: bool = False,
        on_nonfinite: str = "skip",
        direction: str | Direction = "gram",
        history_dtype: torch.dtype | None = None,
        fisher_dtype: torch.dtype | None = None,
        fisher_device: torch.device | str | None = None,
        master_weights: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        on_cycle: CycleCallback | Sequence[CycleCallback] | None = None,
        process_group: Any = None,
        shard_history: bool = False,
    ) -> None:
        p = chosen(
            preset, lr=lr, cycle_length=cycle_length, memory_size=memory_size, fisher_size=fisher_size, scaling=scaling,
            momentum=momentum, nesterov=nesterov, damping=damping, curvature_test=curvature_test, acceptance=acceptance,
            reject_window=reject_window,
        )  # fmt: skip
        h0 = make_h0(p.scaling, scaling_eps)
        length, bounds = make_cycle(p.cycle_length, min_cycle_length, max_cycle_length)
        options = Options(
            monitor=monitor,
            cycle_length=length,
            cycle_bounds=bounds,
            memory_size=p.memory_size,
            curvature_eps=curvature_eps,
            scaling=h0,
            repair=make_damping(p.damping, h0, asked=damping is not None),
            curvature=make_curvature(curvature, p.fisher_size, fisher_batch_size),
            curvature_test=make_curvature_test(p.curvature_test),
            acceptance=make_acceptance(p.acceptance, reject_factor, paired_level),
            direction=make_direction(direction),
            momentum=make_momentum(p.momentum, nesterov=p.nesterov),
            reset_momentum=choose("momentum_on_reject", momentum_on_reject, {"reset": True, "keep": False}),
            anchor_patience=anchor_patience,
            reject_patience=reject_patience,
            reject_window=p.reject_window,
            reset_scaling=reset_scaling_on_reject,
            on_nonfinite=on_nonfinite,
            maximize=maximize,
            precision=Precision(
                history_dtype,
                fisher_dtype,
                torch.device(fisher_device) if fisher_device is not None else None,
                master_weights,
            ),
            on_cycle=callbacks(on_cycle),
            process_group=process_group,
            shard_history=shard_history,
        )
        super().__init__(params, options, lr=p.lr, weight_decay=weight_decay)
