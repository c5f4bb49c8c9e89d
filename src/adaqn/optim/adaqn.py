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
from adaqn.optim.watch import MonitorFunction


class AdaQN(QuasiNewton):
    r"""adaQN (Keskar and Berahas): L-BFGS pairs from averaged iterates and an accumulated Fisher matrix.

    .. math::
        w \leftarrow w - \alpha H g, \quad
        H = \mathrm{LBFGS}\big(S, Y, H_0 = 1/\sqrt{\textstyle\sum g^2 + \epsilon}\big)

    and every ``cycle_length`` steps, with :math:`\bar w` the average of the cycle,
    :math:`s = \bar w - \bar w_{\text{anchor}}` and :math:`y = \frac{1}{|F|}\sum_i g_i (g_i \cdot s)`
    over the last ``fisher_size`` gradients: rejected if the monitored loss got worse, stored if
    :math:`s \cdot y > \epsilon\, s \cdot s`.

    ``None``, where it is the default, means "not given": the preset's value, or what is said below.

    Args:
        params: parameters or param groups, which may have their own ``lr``, ``weight_decay`` and ``momentum``.
        lr: the step size α; may be 0, and may be a tensor. By default the preset's.
        monitor: a function without arguments that returns the loss on a fixed batch of the training
            split, as a scalar or per example; see :class:`adaqn.Monitor`. Its ``advance()``, if it has
            one, is called once per cycle. Also an attribute, for frameworks that build the optimizer.
            Without one nothing is rejected by its loss.
        preset: ``"kronecker"``, the default: SOAP's scaling, momentum, a short memory, and tests that know scale and
            noise; ``"modern"``, the same with Adam's scaling; ``"paper"``. ``adaqn.PRESETS`` lists them. Explicit
            arguments override the preset.
        cycle_length: steps per cycle, the paper's L. ``"auto"`` lets the quality of the pairs decide, between 2 and 20
            (:mod:`adaqn.core.cycle`); ``(shortest, longest)`` are bounds of your own.
        scaling: H0, one of ``"adagrad"`` (the paper's), ``"rmsprop"``, ``"adam"``, ``"kronecker"`` (SOAP's, not
            diagonal: :class:`adaqn.Kronecker`), ``"barzilai_borwein"``, ``"identity"``, or a
            :class:`adaqn.Scaling` object, one of these with options of its own or yours.
        momentum: β of the averaged gradient that the recursion sees, bias corrected as in Adam; H0 and F̃ see the
            gradient itself. 0 is none. Schedulers that cycle it find it in the param groups.
        nesterov: look one step ahead in that average, as NAdam does.
        warm_up: steps in which the step size rises to ``lr``. 0 is none.
        averaging: c of the growing average that :meth:`averaged` and :meth:`eval` show: over about the last 1/c of the
            run, whatever its length, so that no schedule is needed. 0 is the average of the last accepted cycle alone.
        pairs: which curvature pairs are kept, tested and repaired: :class:`adaqn.PairOptions`.
        reject: when a cycle is rejected: ``"paired"``, ``"factor"``, ``"relative"``, ``"none"``, a function
            ``(new, old) -> rejected`` of the losses at both points, or :class:`adaqn.RejectOptions`, which explains
            these.
        storage: how wide the history is, and where it lies: :class:`adaqn.StorageOptions`.
        weight_decay: decoupled, as in AdamW.
        maximize: maximize the objective; the monitor then returns what is to be large.
        on_nonfinite: ``"skip"`` a gradient that is not finite (D9), or ``"raise"``.
        on_cycle: called with a :class:`adaqn.CycleEvent` at the end of each cycle; or several, in a list. What one
            raises comes out of ``step()``, when the cycle is complete (``docs/logging.md``).
        process_group: the processes that train this model together, under ``torchrun``. By default all of them;
            ``"none"`` is this one alone.

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
