"""What happens in each cycle, as plain numbers for any log."""

from __future__ import annotations

from typing import Any, Protocol

from adaqn.core.checks import at_least_one
from adaqn.fullbatch.events import Iteration
from adaqn.optim.events import CycleEvent


class LogFunction(Protocol):
    """``mlflow.log_metrics``, ``wandb.log``, or anything that is called like them."""

    def __call__(self, values: dict[str, float], /, *, step: int) -> Any:
        """Numbers by name, and the step that they belong to."""
        ...


class CycleLog:
    """An ``on_cycle`` that gives :meth:`adaqn.CycleEvent.as_dict` to a function; for whole gradients that of each
    :class:`adaqn.Iteration`.

    Args:
        log: called as ``log(values, step=step)``, with the number of steps of the optimizer so far: a resumed run goes
            on where it was.
        every: log every so many cycles; the totals among the numbers count all of them.
        prefix: stands before every name.

    >>> import torch
    >>> from adaqn import AdaQN
    >>> w, seen = torch.nn.Parameter(torch.ones(3)), []
    >>> log = CycleLog(lambda values, step: seen.append((step, values["adaqn/cycle"])), every=2)
    >>> opt = AdaQN([w], reject="none", on_cycle=log)
    >>> for _ in range(20):
    ...     opt.zero_grad()
    ...     w.square().sum().backward()
    ...     opt.step()
    >>> seen
    [(10, 2), (20, 4)]
    """

    def __init__(self, log: LogFunction, *, every: int = 1, prefix: str = "adaqn/") -> None:
        if not callable(log):
            raise TypeError(f"log must be a function (values, step=...), such as mlflow.log_metrics; got {log!r}")
        self.log, self.every, self.prefix = log, at_least_one("every", every), prefix

    def __call__(self, event: CycleEvent | Iteration) -> None:
        if event.cycle % self.every == 0:
            self.log({self.prefix + name: value for name, value in event.as_dict().items()}, step=event.step)
