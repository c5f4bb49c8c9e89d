"""What happens in each cycle, in TensorBoard."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from adaqn.fullbatch.events import Iteration
from adaqn.integrations.cycle_log import CycleLog
from adaqn.optim.events import CycleEvent

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger:
    """An ``on_cycle`` that writes one scalar per number of :meth:`adaqn.CycleEvent.as_dict`, or of that of an
    :class:`adaqn.Iteration`.

    The horizontal axis is the number of steps that the optimizer has made, which is saved with its state. Given a
    folder, a resumed run hides what an interrupted one has written there beyond the checkpoint, whoever wrote it; a
    writer of your own does that by its ``purge_step``. A copy of the logger, as in a copied optimizer, opens a file of
    its own in the same folder.

    Args:
        target: a folder, or a ``torch.utils.tensorboard.SummaryWriter`` of yours, which stays yours to close.
        every: log every so many cycles; the totals count all of them.
        prefix: stands before every name; what comes before its slash is a section of the page.
    """

    def __init__(
        self, target: str | os.PathLike[str] | SummaryWriter, *, every: int = 1, prefix: str = "adaqn/"
    ) -> None:
        writer = writer_class()  # one clear error now, not in the middle of a run
        if isinstance(target, str | os.PathLike):
            self.folder, self._writer = os.fspath(target), None
        elif isinstance(target, writer):
            self.folder, self._writer = target.log_dir, target
        else:
            raise TypeError(f"target must be a folder or a SummaryWriter, got {target!r}")
        self._cycles = CycleLog(self._write, every=every, prefix=prefix)
        self._resumed: bool | None = None

    def __call__(self, event: CycleEvent | Iteration) -> None:
        if self._resumed is None:
            self._resumed = event.cycle > 1
        self._cycles(event)

    def flush(self) -> None:
        """Everything so far is in the file; at the end of the program that happens by itself."""
        if self._writer is not None:
            self._writer.flush()

    def _write(self, values: dict[str, float], *, step: int) -> None:
        if self._writer is None:
            self._writer = writer_class()(self.folder, purge_step=step if self._resumed else None)
            weakref.finalize(self, self._writer.close)  # what is waiting to be written is lost otherwise
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def __getstate__(self) -> dict[str, Any]:
        # A writer holds threads and an open file, which cannot be copied.
        return {**self.__dict__, "_writer": None}


def writer_class() -> type[SummaryWriter]:
    """torch's writer, which needs a package of its own."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoardLogger needs tensorboard: pip install 'adaqn[tensorboard]'") from error
    return SummaryWriter
