"""What the laboratory takes from the library beside its public names, in one place.

Runs, results and the command line keep the flat option names of 0.1 (``memory_size``, ``acceptance``, ...): files on
disk keep their meaning whatever the constructor of :class:`adaqn.AdaQN` looks like.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from adaqn import PRESETS

_HAS_NEW_FACE = importlib.util.find_spec("adaqn.optim.removed") is not None
_record = importlib.import_module("adaqn.explain.record" if _HAS_NEW_FACE else "adaqn.optim.record")
_explain = importlib.import_module("adaqn.explain.explanation" if _HAS_NEW_FACE else "adaqn.optim.explain")

Record: Any = _record.Record
record_of: Any = _record.record_of
Explanation: Any = _explain.Explanation
explanation_of: Any = _explain.explain
QuasiNewton: Any = importlib.import_module("adaqn.optim.quasi_newton").QuasiNewton

if _HAS_NEW_FACE:
    _removed = importlib.import_module("adaqn.optim.removed")
    FLAT: tuple[str, ...] = _removed.FLAT
    from_flat = _removed.from_flat
    flat_preset = _removed.flat_preset
else:
    FLAT = ()

    def from_flat(options: dict[str, Any]) -> dict[str, Any]:
        return dict(options)

    def flat_preset(name: str) -> dict[str, Any]:
        values = asdict(PRESETS[name])
        return {**values, "acceptance": "paired"} if values["acceptance"] == "auto" else values


def remember(optimizer: Any, cycles: Iterable[Any]) -> None:
    """Cycles of before a checkpoint, for ``explain()``."""
    (optimizer._recent if _HAS_NEW_FACE else optimizer.recent).extend(cycles)
