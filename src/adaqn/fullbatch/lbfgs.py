"""L-BFGS on top of an adaptive H0, in the place of torch.optim.LBFGS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from adaqn.core.checks import at_least_one
from adaqn.core.line_search import LineSearch
from adaqn.core.scaling import Scaling
from adaqn.fullbatch.events import IterationCallback
from adaqn.fullbatch.method import SearchName, WholeMethod, group_defaults, make_noise, make_search, make_storage
from adaqn.fullbatch.optimizer import WholeGradient, check_arguments
from adaqn.optim.events import callbacks
from adaqn.optim.method import make_damping, make_h0
from adaqn.optim.settings import ScalingName, StorageOptions


class LBFGS(WholeGradient):
    r"""L-BFGS for full-batch training, a drop-in for ``torch.optim.LBFGS``: change the import.

    .. math::
        w \leftarrow w - t\,H g, \qquad H = \mathrm{LBFGS}(\gamma H_0; S, Y), \qquad
        \gamma = \frac{s \cdot y}{y \cdot H_0 y}

    with :math:`H_0` learned from the pairs (:class:`adaqn.KroneckerSecant`), γ from the newest pair, t from a line
    search, s the step and y the change of the gradient along it. With ``scaling="kronecker"`` H0 is SOAP's operator,
    learned from the gradients. With ``scaling="identity"`` and ``line_search_fn="strong_wolfe"`` the iterates are those
    of torch's L-BFGS. The loss must be the same function throughout a step; for new data between steps see
    :meth:`resampled`.

    Beyond torch's: param groups, ``maximize``, frozen parameters, float32 history for low-precision weights, several
    processes, non-finite losses (they shorten a step), restarts, a ``state_dict()`` that resumes bit-for-bit, ``stats``
    and ``explain()``.

    Args:
        params: parameters or param groups; groups may have their own ``lr``.
        lr: the first length that the line search tries. With several groups, Λ = lr/max lr scales H0.
        max_iter: iterations per step.
        max_eval: evaluations of the closure per step, never exceeded. By default 5/4 of ``max_iter``, and at least
            ``max_iter`` + 5, so that short steps have room for a search.
        tolerance_grad: stop when the largest absolute value of the gradient is at most this.
        tolerance_change: stop when loss or weights change by less than this.
        history_size: number of pairs kept.
        line_search_fn: ``"strong_wolfe"``, ``"hager_zhang"``, ``"backtracking"``, a function as in
            :class:`adaqn.core.line_search.LineSearch`, or ``None`` for steps of length ``lr``, torch's default.
        scaling: H0, by name or as an object such as ``Kronecker(refresh=10)``.
        damping: y is mixed with H0⁻¹s until s·y is at least this share of s·H0⁻¹s. 0 turns it off.
        noise: differences of losses that a search ignores; ``"auto"`` compares the loss at the end of a step with the
            loss at the beginning of the next.
        maximize: maximize the loss.
        storage: its ``history_dtype``, ``master_weights`` and ``shard_history`` apply.
        on_cycle: called with an :class:`adaqn.Iteration` after each iteration; one function or a list.
        process_group: as in :class:`adaqn.AdaQN`. The loss is the mean over the processes.

    >>> import torch
    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    >>> opt = LBFGS(net.parameters(), max_iter=100)
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = (net(x) - x.sin()).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> before = opt.step(closure)
    >>> bool(closure() < 0.01 * before)
    True
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: SearchName | LineSearch | None = "hager_zhang",
        *,
        scaling: ScalingName | Scaling = "kronecker_secant",
        damping: float = 0.0,
        noise: float | Literal["auto"] = "auto",
        maximize: bool = False,
        storage: StorageOptions | None = None,
        on_cycle: IterationCallback | Sequence[IterationCallback] | None = None,
        process_group: Any = None,
        **others: NoReturn,
    ) -> None:
        check_arguments("LBFGS", others)
        h0, stored, search = make_h0(scaling), make_storage(storage), make_search(line_search_fn)
        made_of = {
            "size": at_least_one("history_size", history_size),
            "repair": make_damping(damping, h0, asked=True),
            "dtype": stored.history_dtype,
            "wide_weights": stored.master_weights,
            "waits": search is None,
        }
        method = WholeMethod(
            h0,
            search,
            made_of=made_of,
            noise=make_noise(noise),
            maximize=maximize,
            shard_history=stored.shard_history,
            on_cycle=callbacks(on_cycle),
            process_group=process_group,
        )
        defaults = group_defaults(lr, max_iter, max_eval, tolerance_grad, tolerance_change, line_search_fn)
        defaults["history_size"] = history_size
        super().__init__(params, method, defaults)
