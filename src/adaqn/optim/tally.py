"""How many steps of a cycle had a finite gradient: counted where the gradients are, so that no step waits (D9, D32)."""

from __future__ import annotations

import torch
from torch import Tensor

from adaqn.optim.events import Counters


class Tally:
    """The steps of a cycle: the host counts them all, the device those with a finite gradient.

    What the device has counted the host learns by a read, at the end of a cycle or when somebody asks. Until then its
    counters take every step for a finite one.

    >>> tally = Tally(Counters(), torch.device("cpu"))
    >>> for ok in (1.0, 0.0, 1.0, 0.0):
    ...     tally.add(torch.tensor(ok))
    >>> tally.learn(*map(int, tally.unknown.tolist()))
    >>> tally.steps, tally.finite, tally.counters.steps, tally.counters.nonfinite, tally.counters.nonfinite_in_row
    (4, 2, 2, 2, 1)
    """

    @torch.inference_mode(False)
    def __init__(self, counters: Counters, device: torch.device) -> None:
        self.counters = counters
        self.unknown = torch.zeros(2, dtype=torch.float64, device=device)
        """What the host does not know: how many steps since it last learnt were finite, and which step of the cycle
        was the last finite one, counted from 1 (0 is none)."""
        self._fresh, self._last = self.unknown.unbind()
        self.clear()

    def clear(self) -> None:
        """A cycle begins."""
        self.steps = self.finite = self._known = self._row = 0
        self.unknown.zero_()

    def add(self, ok: Tensor) -> None:
        """A step, with a finite gradient if ``ok`` is 1."""
        if self.steps == 0:
            self._row = self.counters.nonfinite_in_row
        self.steps += 1
        self.counters.steps += 1
        self._fresh += ok
        torch.maximum(self._last, ok.double() * self.steps, out=self._last)

    @property
    def count(self) -> Tensor:
        """The finite steps of the cycle, on the device."""
        return self._fresh + self.finite

    @property
    def is_known(self) -> bool:
        return self._known == self.steps

    @property
    def lost(self) -> int:
        """The steps of this cycle that the host knows not to have been finite."""
        return self._known - self.finite

    def learn(self, fresh: int, last: int) -> None:
        """The host learns what ``unknown`` says."""
        c, lost = self.counters, self.steps - self._known - fresh
        c.steps -= lost
        c.nonfinite += lost
        c.nonfinite_in_row = self.steps - last if last else self._row + self.steps
        self.finite, self._known = self.finite + fresh, self.steps
        self._fresh.zero_()

    def restore(self, steps: int, finite: int) -> None:
        """Go on within a cycle of which so much is known; the counters have been restored."""
        in_row = min(self.counters.nonfinite_in_row, steps)
        self.steps, self.finite, self._known = steps, finite, steps
        self._row = self.counters.nonfinite_in_row - in_row
        self._fresh.zero_()
        self._last.fill_(steps - in_row)
