"""BFGS and its self-scaled relatives, with H as a matrix: for problems of up to some thousands of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from adaqn.core.checks import choose
from adaqn.core.full_matrix import UPDATES, affordable
from adaqn.core.line_search import LineSearch
from adaqn.core.scaling import Scaling
from adaqn.fullbatch.dense import FullMatrix
from adaqn.fullbatch.events import IterationCallback
from adaqn.fullbatch.method import SearchName, WholeMethod, group_defaults, make_noise, make_search
from adaqn.fullbatch.optimizer import WholeGradient, check_arguments
from adaqn.optim.events import callbacks
from adaqn.optim.method import make_h0
from adaqn.optim.settings import ScalingName


class BFGS(WholeGradient):
    r"""BFGS for full-batch training, with H an n × n matrix in float64; also self-scaled BFGS and Broyden.

    .. math::
        w \leftarrow w - t\,H g, \qquad
        H_+ = \frac{1}{\tau}\Big(H - \frac{Hy\,(Hy)^T}{y \cdot Hy} + \phi\,v v^T\Big) + \frac{s s^T}{s \cdot y}

    with τ = φ = 1 for plain BFGS (:mod:`adaqn.core.full_matrix`; self-scaled: Urbán, Stefanou and Pons 2025). Memory is
    8n² bytes, 800 MB at the limit of 10,000 weights; ``state_size()`` gives it in advance. An iteration reads and
    writes H about three times. For more weights use :class:`adaqn.LBFGS`.

    Args:
        params: parameters or param groups; groups may have their own ``lr``.
        lr: the first length that the line search tries. With several groups, Λ = lr/max lr scales the initial H.
        max_iter: iterations per step.
        max_eval: evaluations of the closure per step, never exceeded; by default as in :class:`adaqn.LBFGS`.
        tolerance_grad: stop when the largest absolute value of the gradient is at most this.
        tolerance_change: stop when loss or weights change by less than this.
        line_search_fn: ``"strong_wolfe"``, ``"hager_zhang"``, ``"backtracking"`` or your own function.
        update: ``"bfgs"``, ``"ssbfgs"`` (self-scaled BFGS) or ``"ssbroyden"`` (self-scaled Broyden).
        scaling: the H0 from which H starts, by name or as an object.
        noise: as in :class:`adaqn.LBFGS`.
        maximize: maximize the loss.
        on_cycle: called with an :class:`adaqn.Iteration` after each iteration; one function or a list.
        process_group: as in :class:`adaqn.AdaQN`; every process keeps the whole matrix.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))
    >>> opt = BFGS([w], max_iter=200)
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = 100 * (w[1] - w[0] ** 2) ** 2 + (1 - w[0]) ** 2
    ...     loss.backward()
    ...     return loss
    >>> _ = opt.step(closure)
    >>> bool((w - 1).abs().max() < 1e-5)
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
        line_search_fn: SearchName | LineSearch = "hager_zhang",
        *,
        update: Literal["bfgs", "ssbfgs", "ssbroyden"] = "ssbfgs",
        scaling: ScalingName | Scaling = "identity",
        noise: float | Literal["auto"] = "auto",
        maximize: bool = False,
        on_cycle: IterationCallback | Sequence[IterationCallback] | None = None,
        process_group: Any = None,
        **others: NoReturn,
    ) -> None:
        check_arguments("BFGS", others)
        choose("update", update, UPDATES)
        search = make_search(line_search_fn)
        if search is None:
            raise ValueError("BFGS needs a line search: line_search_fn must be one of 'strong_wolfe', 'hager_zhang', "
                             "'backtracking' or a function, got None")  # fmt: skip
        method = WholeMethod(
            make_h0(scaling),
            search,
            kind=FullMatrix,
            made_of={"update": update, "wide_weights": False, "waits": False},
            noise=make_noise(noise),
            maximize=maximize,
            on_cycle=callbacks(on_cycle),
            process_group=process_group,
        )
        defaults = group_defaults(lr, max_iter, max_eval, tolerance_grad, tolerance_change, line_search_fn)
        super().__init__(params, method, defaults)
        affordable(max(1, sum(p.numel() * (2 if p.is_complex() else 1) for p in self._trained())))
