"""Signals as a note to be read at a good moment, instead of an exception at any; workers that end with their parent."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_noted(*more: signal.Signals) -> Iterator[threading.Event]:
    """Within the block Ctrl-C sets the event; who sees it set raises ``KeyboardInterrupt`` where nothing is half done.

    Signals that are ignored stay so, and only the main thread may handle signals at all.

    Args:
        more: other signals that do the same.
    """
    noted = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    heeded = [one for one in (signal.SIGINT, *more) if is_main and signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, lambda *_: noted.set()) for one in heeded}
    try:
        yield noted
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that went.

    A killed parent tells its workers nothing: they would go on, hold the claims on their folders, and wait for ever.
    A run may be killed at any moment and resumes bit-for-bit.
    """
    parent = mp.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: mp.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
