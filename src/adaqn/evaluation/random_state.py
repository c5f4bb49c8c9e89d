"""Random numbers: kept, put back, and drawn again."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class RandomState:
    """The random state of the CPU and of the accelerators among ``devices``, as it is now.

    >>> before = RandomState()
    >>> first = torch.rand(3)
    >>> before.restore()
    >>> torch.equal(first, torch.rand(3))
    True
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._cpu: Tensor = torch.get_rng_state()
        accelerators = sorted({d for d in devices if d.type not in ("cpu", "meta")}, key=str)
        self._others: list[tuple[torch.device, Tensor]] = [(d, _module(d).get_rng_state(d)) for d in accelerators]

    def restore(self) -> None:
        """Draw the same numbers from here on as from the moment when it was taken."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others:
            _module(device).set_rng_state(state, device)

    @property
    def devices(self) -> list[torch.device]:
        """The accelerators whose state is kept."""
        return [device for device, _ in self._others]

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the same numbers again within the block; outside of it nobody notices."""
        with random_state_kept(self.devices):
            self.restore()
            yield


@contextmanager
def random_state_kept(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Whatever the block draws, the numbers after it are those that would have come without it."""
    before = RandomState(devices)
    try:
        yield
    finally:
        before.restore()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's, Python's and, where it is in use, numpy's generators begin at a seed, and come back as they were.

    Those of accelerators are left alone: what needs this happens on the CPU.
    """
    numpy: Any = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    with random_state_kept():
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
