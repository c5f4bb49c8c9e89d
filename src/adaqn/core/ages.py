"""How many finite gradients each parameter has had: counted where the gradients are, and read only to be saved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Ages:
    """One count on the device for all parameters that had their gradients at the same steps.

    Whether a gradient is finite only the device knows, so that the counts live there; which parameters came and went
    together the host knows.

    Args:
        count: the number of parameters.
        device: where the counts live.

    >>> ages = Ages(3, torch.device("cpu"))
    >>> ages.add([0, 1, 2])
    >>> ages.add([0, 1, 2], ok=torch.tensor(0.0))
    >>> ages.add([0, 2])
    >>> ages.values()
    [2, 1, 2]
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.kinds = [0] * count
        """Which count is whose."""
        self._counts = torch.zeros(max(count, 1), dtype=torch.float64, device=device)
        self._read: list[int] | None = None
        self._is_new = False
        """Has what was loaded yet to go to the device?"""

    def add(self, present: Sequence[int], ok: Tensor | None = None) -> None:
        """One gradient more for these parameters, if it is finite."""
        self._change()
        one = 1.0 if ok is None else ok
        if len(present) == len(self.kinds):
            self._counts.add_(one)
            return
        here = set(present)
        for kind in sorted({self.kinds[i] for i in here}):
            members = {i for i, k in enumerate(self.kinds) if k == kind}
            if not members <= here:
                new = self._move(members & here)
                self._counts[new].copy_(self._counts[kind])
                kind = new
            self._counts[kind].add_(one)

    def restart(self, indices: Sequence[int]) -> None:
        """None at all for these parameters."""
        if indices:
            self._change()
            self._counts[self._move(set(indices))].zero_()

    def powers(self, decay: float) -> Tensor:
        """decayᵗ for each count t, of at least 1."""
        self._settle()
        return torch.pow(decay, self._counts.clamp(min=1.0))

    def values(self) -> list[int]:
        """The count of each parameter: a read from the device."""
        if self._read is None:
            counts = self._counts.tolist()
            self._read = [int(counts[kind]) for kind in self.kinds]
        return list(self._read)

    def load(self, index: int, value: int) -> None:
        """Take back one of ``values``."""
        self._read = self.values()
        self._read[index] = value
        self._is_new = True

    def _change(self) -> None:
        self._settle()
        self._read = None

    def _move(self, indices: set[int]) -> int:
        """Give these parameters a count of their own."""
        for i in indices:
            self.kinds[i] = -1
        new = min(set(range(len(self.kinds))) - set(self.kinds))
        for i in indices:
            self.kinds[i] = new
        return new

    def _settle(self) -> None:
        """What was loaded, onto the device."""
        if self._is_new and self._read is not None:
            found = sorted(set(self._read))
            self.kinds = [found.index(value) for value in self._read]
            self._counts[: len(found)] = torch.tensor(found, dtype=torch.float64)
            self._is_new = False
