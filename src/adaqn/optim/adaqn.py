"""adaQN: a signature, a docstring and a choice of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from adaqn.core.acceptance import RejectTest
from adaqn.core.scaling import Scaling
from adaqn.optim.descent import check_momentum
from adaqn.optim.events import CycleCallback, callbacks
from adaqn.optim.method import (
    Method,
    make_curvature,
    make_curvature_test,
    make_cycle,
    make_damping,
    make_direction,
    make_h0,
    make_judge,
)
from adaqn.optim.optimizer import QuasiNewton
from adaqn.optim.removed import check_removed
from adaqn.optim.settings import (
    PairOptions,
    PresetName,
    RejectName,
    RejectOptions,
    ScalingName,
    StorageOptions,
    given,
    preset_with,
)
from adaqn.optim.torch_arguments import others_by_name
from adaqn.optim.watch import MonitorFunction


class AdaQN(QuasiNewton):
    r"""An optimizer for minibatches that undoes bad steps and averages the weights instead of using a schedule.

    By default the step is :math:`w \leftarrow w - \alpha H_0 g`, with SOAP's operator as :math:`H_0`, Nesterov momentum
    and a warm-up. Every ``cycle_length`` steps the average of the cycle is evaluated by the monitor. If its loss is
    worse beyond noise, the weights return to the last accepted average. Evaluate at :meth:`averaged`.

    ``preset="paper"`` is adaQN (Keskar and Berahas), with L-BFGS pairs on top of Adagrad's :math:`H_0`:

    .. math::
        w \leftarrow w - \alpha H g, \quad
        H = \mathrm{LBFGS}\big(S, Y, H_0 = 1/\sqrt{\textstyle\sum g^2 + \epsilon}\big)

    Its pairs are :math:`s = \bar w - \bar w_{\text{anchor}}`, with :math:`\bar w` the average of the cycle, and
    :math:`y = \frac{1}{|F|}\sum_i g_i (g_i \cdot s)` over the last ``fisher_size`` gradients. A pair is stored if
    :math:`s \cdot y > \epsilon\, s \cdot s`.

    For options that belong to a preset, ``None`` means the preset's value.

    Args:
        params: parameters or param groups, which may have their own ``lr``, ``weight_decay`` and ``momentum``.
        lr: the step size α, a number or a tensor; may be 0.
        monitor: a function without arguments that returns the loss on a fixed batch of the training
            split, as a scalar or per example; see :class:`adaqn.Monitor`. Its ``advance()``, if it has
            one, is called once per cycle. May also be set later, as ``opt.monitor``. Without a monitor no cycle is
            rejected by its loss.
        preset: ``"kronecker"`` (the default: SOAP's scaling, momentum, a warm-up, a growing average, the paired
            rejection test, no pairs), ``"modern"`` (the same with Adam's scaling), or ``"paper"``. ``adaqn.PRESETS``
            lists their values. Explicit arguments override the preset.
        cycle_length: steps per cycle, the paper's L. ``"auto"`` adapts it to the quality of the pairs, between 2 and 20
            (:mod:`adaqn.core.cycle`); ``(shortest, longest)`` sets these bounds.
        scaling: H0, one of ``"adagrad"`` (the paper's), ``"rmsprop"``, ``"adam"``, ``"kronecker"`` (SOAP's, not
            diagonal: :class:`adaqn.Kronecker`), ``"barzilai_borwein"``, ``"identity"``, or a
            :class:`adaqn.Scaling` object: one of these with its own options, or yours.
        momentum: β of the averaged gradient, bias corrected as in Adam. H0 and F̃ see the gradient itself. 0 turns it
            off. It is in the param groups, where schedulers can cycle it.
        nesterov: look one step ahead in that average, as NAdam does.
        warm_up: number of steps in which the step size rises to ``lr``. 0 turns it off.
        averaging: c of the growing average that :meth:`averaged` and :meth:`eval` show: over about the last 1/c of the
            run, whatever its length. With 0 they show the average of the last accepted cycle.
        pairs: which curvature pairs are kept, and how they are tested and damped: :class:`adaqn.PairOptions`.
        reject: when a cycle is rejected: ``"paired"``, ``"factor"``, ``"relative"``, ``"none"``, a function
            ``(new, old) -> rejected`` of the losses at both points, or :class:`adaqn.RejectOptions`, which explains
            these.
        storage: dtype and device of the history: :class:`adaqn.StorageOptions`.
        weight_decay: decoupled, as in AdamW.
        maximize: maximize the objective; the monitor then returns the objective to be maximized.
        on_nonfinite: ``"skip"`` non-finite gradients (D9), or ``"raise"``.
        on_cycle: a function, or a list of functions, called with a :class:`adaqn.CycleEvent` at the end of each cycle.
            ``step()`` raises their errors once the cycle is complete (``docs/logging.md``).
        process_group: the processes that train this model together, under ``torchrun``. By default all of them;
            ``"none"`` is only this one.

    >>> import torch
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

    @others_by_name
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        *,
        monitor: MonitorFunction | None = None,
        preset: PresetName = "default",
        cycle_length: int | Literal["auto"] | tuple[int, int] | None = None,
        scaling: ScalingName | Scaling | None = None,
        momentum: float | None = None,
        nesterov: bool | None = None,
        warm_up: int | None = None,
        averaging: float | None = None,
        pairs: PairOptions | None = None,
        reject: RejectName | RejectTest | RejectOptions | None = None,
        storage: StorageOptions | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        on_nonfinite: Literal["skip", "raise"] = "skip",
        on_cycle: CycleCallback | Sequence[CycleCallback] | None = None,
        process_group: Any = None,
        **removed: NoReturn,
    ) -> None:
        check_removed("AdaQN", removed, preset=preset, scaling=scaling)
        p = preset_with(
            preset, pairs, reject, cycle_length=cycle_length, scaling=scaling, momentum=momentum, nesterov=nesterov,
            warm_up=warm_up, averaging=averaging,
        )  # fmt: skip
        h0 = make_h0(p.scaling)
        length, bounds = make_cycle(p.cycle_length)
        method = Method(
            judge=make_judge(p.reject),
            cycle_length=length,
            cycle_bounds=bounds,
            memory_size=given(p.pairs.memory_size),
            curvature_eps=given(p.pairs.eps),
            scaling=h0,
            curvature=make_curvature(p.pairs),
            scale=given(p.pairs.scale),
            curvature_test=make_curvature_test(p.pairs.test),
            direction=make_direction(p.pairs.direction),
            nesterov=p.nesterov,
            warm_up=p.warm_up,
            averaging=p.averaging,
            repair=make_damping(given(p.pairs.damping), h0, asked=pairs is not None and pairs.damping is not None),
            anchor_patience=given(p.pairs.anchor_patience),
            reset_momentum=given(p.reject.reset_momentum),
            reset_scaling=given(p.reject.reset_scaling),
            on_nonfinite=on_nonfinite,
            maximize=maximize,
            storage=StorageOptions() if storage is None else storage,
            on_cycle=callbacks(on_cycle),
            process_group=process_group,
        )
        super().__init__(
            params,
            method,
            lr=p.lr if lr is None else lr,
            weight_decay=weight_decay,
            momentum=check_momentum(p.momentum),
            monitor=monitor,
        )
