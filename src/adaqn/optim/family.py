"""The other stochastic quasi-Newton methods, those that the paper names among them: choices of AdaQN's parts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from torch import Tensor
from torch.optim.optimizer import ParamsT

from adaqn.core.barzilai_borwein import BoundedBarzilaiBorwein, MeanBarzilaiBorwein
from adaqn.core.checks import at_least_one, at_least_zero
from adaqn.core.curvature import Curvature
from adaqn.core.direction import Direction
from adaqn.core.pairs import Damping, Shift, absolute, positive
from adaqn.core.regularised import Regularised
from adaqn.core.scaling import BarzilaiBorwein
from adaqn.optim.curvatures import GradientDifference
from adaqn.optim.events import CycleCallback, callbacks
from adaqn.optim.judge import Judge
from adaqn.optim.method import Method, make_direction
from adaqn.optim.optimizer import QuasiNewton
from adaqn.optim.removed import check_removed
from adaqn.optim.settings import StorageOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

CLOSURE = "step(closure): the closure calls zero_grad() and backward(), returns the loss, and is run twice"


class Common(TypedDict, total=False):
    """What every method of the family takes beside its own numbers."""

    decay_steps: float | None
    """τ of the decaying step size lr·τ/(τ + steps); by default it is constant, for a scheduler of torch to change."""
    weight_decay: float
    maximize: bool
    on_nonfinite: Literal["skip", "raise"]
    direction: Literal["gram", "two_loop"] | Direction
    storage: StorageOptions | None
    on_cycle: CycleCallback | Sequence[CycleCallback] | None
    process_group: Any


def method_of(name: str, common: Common, **parts: Any) -> Method:
    """Accept every step, look at every direction, and let the anchor move also where a pair is skipped."""
    given = {option: value for option, value in common.items() if option not in Common.__annotations__}
    check_removed(name, given, arguments=Common.__annotations__)
    if "direction" in common:
        parts.setdefault("direction", make_direction(common["direction"]))
    storage = common.get("storage")
    return Method(
        judge=Judge(test=None, patience=3),
        guarded=True,
        anchor_patience=1,
        decay_steps=common.get("decay_steps"),
        on_nonfinite=common.get("on_nonfinite", "skip"),
        maximize=common.get("maximize", False),
        storage=StorageOptions() if storage is None else storage,
        on_cycle=callbacks(common.get("on_cycle")),
        process_group=common.get("process_group"),
        **parts,
    )


def gradient_difference(common: Common) -> GradientDifference:
    return GradientDifference(negated=common.get("maximize", False))


class OLBFGS(QuasiNewton):
    r"""oLBFGS, online L-BFGS (Schraudolph, Yu and Günter 2007; Mokhtari and Ribeiro 2015).

    .. math::
        w \leftarrow w - \eta H g, \quad s = w_{k+1} - w_k, \quad
        y = \nabla f_B(w_{k+1}) - \nabla f_B(w_k) + \lambda s

    with both gradients on the same batch B, and :math:`H_0` the mean of :math:`s \cdot y / y \cdot y` over the memory.

    For convex problems with batches large enough that y is more signal than noise.

    Where it differs from the original: a pair with s·y ≤ 0 is not stored (the authors' convex problems have none); the
    first step is ``initial_scaling``·lr·g with 1e-3 instead of 1e-10, whose y would be rounding errors in float32; the
    authors' gain c is part of lr.

    Args:
        params: parameters or param groups, which may have their own ``lr`` and ``weight_decay``.
        lr: the step size η.
        memory_size: pairs kept.
        regularisation: λ ≥ 0, added to the curvature along every s.
        initial_scaling: H0 before there is a pair.
        common: ``decay_steps`` (τ of lr·τ/(τ + steps)), ``weight_decay``, ``maximize``, ``on_nonfinite``,
            ``direction`` (``"gram"`` or ``"two_loop"``), ``storage``, ``on_cycle``, ``process_group``: as for
            :class:`adaqn.AdaQN`.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    >>> opt = OLBFGS([w], lr=0.5)
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = (torch.tensor([1.0, 10.0]) * w**2).sum()
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(60):
    ...     _ = opt.step(closure)
    >>> bool(w.norm() < 1e-4)
    True
    """

    needs: ClassVar[str] = CLOSURE

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        memory_size: int = 10,
        regularisation: float = 0.0,
        initial_scaling: float = 1e-3,
        **common: Unpack[Common],
    ) -> None:
        at_least_one("memory_size", memory_size)
        at_least_zero("regularisation", regularisation)
        method = method_of(
            "OLBFGS", common,
            cycle_length=1, pair_every_step=True, memory_size=memory_size, curvature=gradient_difference(common),
            repair=Shift(regularisation), curvature_test=positive,
            scaling=MeanBarzilaiBorwein(memory_size, initial_scaling),
        )  # fmt: skip
        super().__init__(params, method, lr=lr, weight_decay=common.get("weight_decay", 0.0))


class RES(QuasiNewton):
    r"""RES, regularised stochastic BFGS (Mokhtari and Ribeiro 2014), in a limited-memory form.

    .. math::
        w \leftarrow w - \eta (\hat B^{-1} + \Gamma I) g, \quad
        \hat B = \mathrm{LBFGS}(S, Y - \delta S) + \delta I \succeq \delta I

    with y as in :class:`OLBFGS`: the eigenvalues of the step matrix lie between Γ and Γ + 1/δ, whatever the noise.

    Where it differs from the original, which keeps a full matrix and adds δI at every update: the pairs of a limited
    memory, and δI once. (The adaQN paper prints yᵀy/(yᵀs) where y yᵀ/(yᵀs) is meant.) A pair is stored if
    s·(y − δs) > ε s·s. The authors decay the step size: ``decay_steps``.

    Args:
        params: parameters or param groups, which may have their own ``lr`` and ``weight_decay``.
        lr: the step size.
        memory_size: pairs kept.
        delta: δ, the smallest eigenvalue of B̂.
        gamma: Γ, a multiple of the gradient in every step.
        curvature_eps: ε of the test for storing.
        initial_scaling: H0 before there is a pair.
        common: as for :class:`OLBFGS`, but ``direction``, which is RES's own.

    >>> import torch
    >>> opt = RES([torch.nn.Parameter(torch.zeros(3))], lr=0.1, delta=1e-2)
    """

    needs: ClassVar[str] = CLOSURE

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        memory_size: int = 10,
        delta: float = 1e-3,
        gamma: float = 1e-4,
        curvature_eps: float = 1e-4,
        initial_scaling: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        at_least_zero("delta", delta)
        at_least_zero("curvature_eps", curvature_eps)
        if "direction" in common:
            raise TypeError("RES has a direction of its own: leave out direction")
        method = method_of(
            "RES", common,
            cycle_length=1, pair_every_step=True, memory_size=memory_size, curvature=gradient_difference(common),
            repair=Shift(-delta), curvature_test=absolute, curvature_eps=curvature_eps,
            scaling=BarzilaiBorwein(initial_scaling), direction=Regularised(delta, gamma),
        )  # fmt: skip
        super().__init__(params, method, lr=lr, weight_decay=common.get("weight_decay", 0.0))


class SdLBFGS(QuasiNewton):
    r"""SdLBFGS, stochastic damped L-BFGS (Wang, Ma, Goldfarb and Liu 2017), for non-convex problems.

    .. math::
        \bar y = \theta y + (1 - \theta) H_0^{-1} s, \quad
        s \cdot \bar y \ge \tfrac14 s \cdot H_0^{-1} s, \quad
        H_0^{-1} = \max(y \cdot y / s \cdot y, \delta)\, I

    with y as in :class:`OLBFGS`: every pair can be stored, whatever the sign of its curvature, and H stays positive
    definite.

    The adaQN paper cites the earlier SDBFGS of 2014, a damped BFGS with a full matrix, with −δs and +δI as in
    :class:`RES`; this is the limited-memory method of the later revision of that work, with its δ. The authors decay
    the step size: ``decay_steps``.

    Args:
        params: parameters or param groups, which may have their own ``lr`` and ``weight_decay``.
        lr: the step size.
        memory_size: pairs kept.
        delta: δ, the smallest curvature that H0 may assume.
        initial_scaling: H0 before there is a pair.
        common: as for :class:`OLBFGS`.

    >>> import torch
    >>> opt = SdLBFGS([torch.nn.Parameter(torch.zeros(3))], lr=0.1, delta=0.1)
    """

    needs: ClassVar[str] = CLOSURE

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        memory_size: int = 10,
        delta: float = 0.1,
        initial_scaling: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        method = method_of(
            "SdLBFGS", common,
            cycle_length=1, pair_every_step=True, memory_size=memory_size, curvature=gradient_difference(common),
            repair=Damping(), curvature_test=positive, scaling=BoundedBarzilaiBorwein(delta, initial_scaling),
        )  # fmt: skip
        super().__init__(params, method, lr=lr, weight_decay=common.get("weight_decay", 0.0))


class SQN(QuasiNewton):
    r"""SQN, stochastic quasi-Newton (Byrd, Hansen, Nocedal and Singer 2016; 2014 as a report).

    .. math::
        w \leftarrow w - \alpha H g; \quad \text{every } L \text{ steps} \quad
        s = \bar w - \bar w_{\text{before}}, \quad y = \nabla^2 f_H(\bar w)\, s

    with :math:`\bar w` the average of the cycle and the Hessian on a batch H of its own, larger than the gradients'.

    Where it differs from the original: a pair with s·y ≤ 0 is not stored (the authors' problems are convex).

    Args:
        params: parameters or param groups, which may have their own ``lr`` and ``weight_decay``.
        lr: the step size α. The authors decay it: ``decay_steps``.
        curvature: an :class:`adaqn.HessianProduct` of the model, with its batches.
        cycle_length: L, steps per pair.
        memory_size: pairs kept.
        initial_scaling: H0 before there is a pair.
        common: as for :class:`OLBFGS`.

    >>> import torch
    >>> from adaqn import HessianProduct
    >>> model, loss_fn = torch.nn.Linear(4, 1), torch.nn.MSELoss()
    >>> x, target = torch.randn(64, 4), torch.randn(64, 1)
    >>> opt = SQN(model.parameters(), lr=0.1, curvature=HessianProduct(model, loss_fn, [(x, target)]))
    >>> for _ in range(30):
    ...     opt.zero_grad()
    ...     loss_fn(model(x), target).backward()
    ...     _ = opt.step()
    >>> opt.stats.stored
    2
    """

    needs: ClassVar[str] = "step(), and at construction curvature=HessianProduct(model, loss_fn, batches)"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        curvature: Curvature,
        cycle_length: int = 10,
        memory_size: int = 10,
        initial_scaling: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        if not isinstance(curvature, Curvature):
            raise TypeError(f"curvature must be a HessianProduct or another Curvature, got {type(curvature).__name__}")
        method = method_of(
            "SQN", common,
            cycle_length=cycle_length, memory_size=memory_size, curvature=copy.copy(curvature), curvature_test=positive,
            scaling=BarzilaiBorwein(initial_scaling),
        )  # fmt: skip
        super().__init__(params, method, lr=lr, weight_decay=common.get("weight_decay", 0.0))
