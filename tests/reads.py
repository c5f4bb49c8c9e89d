"""Who takes a value out of a tensor? On an accelerator the host would wait there for all that came before."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

METHODS = ("item", "tolist", "numpy", "__float__", "__bool__", "__int__", "__index__", "__complex__", "__array__")
OPERATIONS = (
    "_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "_unique2", "unique_dim",
    "bincount", "_linalg_check_errors",
)  # fmt: skip
"""Of aten, that read values by themselves: the last one is behind ``torch.linalg.eigh`` and others that may fail."""


class Reads(TorchDispatchMode):
    """Notes the line of every read while it is on.

    No accelerator is at hand, so the CPU plays one: every tensor lies there, except those that were made from plain
    numbers while this was on, and what was computed from those alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._of_host = WeakIdKeyDictionary()
        self._noted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, given = func.overloadpacket.__name__, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if name in OPERATIONS:
            self.note(given)
        found = func(*args, **kwargs)
        known = name == "lift_fresh" or (bool(given) and all(t in self._of_host for t in given))
        for t in tree_leaves(found):
            if isinstance(t, Tensor) and known:
                self._of_host[t] = True
            elif isinstance(t, Tensor):
                self._of_host.pop(t, None)
        return found

    def note(self, tensors: list[Tensor]) -> None:
        if not self._noted and not all(t in self._of_host for t in tensors):
            self.lines.append(line_of_caller())

    def taking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of tensors that notes its use once, whatever it calls itself."""

        def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.note([tensor])
            before, self._noted = self._noted, True
            try:
                return method(tensor, *args, **kwargs)
            finally:
                self._noted = before

        return noted


def line_of_caller() -> str:
    frames = traceback.extract_stack()
    ours = [f for f in frames if "/torch/" not in f.filename and not f.filename.endswith("/reads.py")]
    return f"{ours[-1].filename}:{ours[-1].lineno}: {ours[-1].line}"


@contextmanager
def reads() -> Iterator[Reads]:
    """Within the block every read is noted: by operations, and by the methods that need none."""
    mode, originals = Reads(), {name: getattr(Tensor, name) for name in METHODS}
    own = {name for name in METHODS if name in vars(Tensor)}
    try:
        for name, method in originals.items():
            setattr(Tensor, name, mode.taking(method))
        with mode:
            yield mode
    finally:
        for name, method in originals.items():
            if name in own:
                setattr(Tensor, name, method)
            else:
                delattr(Tensor, name)


class Operations(TorchDispatchMode):
    """Counts the operations that are dispatched, views apart from nothing: a view costs the host as much as any."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
