"""Which collectives run within a block, and how many bytes each is given."""

from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist

NAMES = ("all_reduce", "broadcast", "all_gather")


@contextmanager
def counted():
    """Yields a list of (name, bytes of this process's tensor)."""
    calls = []

    def recording(name, function):
        def call(*args, **kwargs):
            tensor = args[1] if name == "all_gather" else args[0]
            calls.append((name, tensor.numel() * tensor.element_size()))
            return function(*args, **kwargs)

        return call

    with mock.patch.multiple(dist, **{name: recording(name, getattr(dist, name)) for name in NAMES}):
        yield calls
