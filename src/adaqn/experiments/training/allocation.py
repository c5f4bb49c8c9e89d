"""Memory that a step frees is kept for the next one, instead of going back to the system.

The C library of Linux gives blocks above 32 MB back at once, and the next step gets new ones, which the system clears
page by page when they are first touched. The logits of 1,600 words out of 10,000 are 64 MB, several times in a step: a
sixth of its time was spent there.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""As ``malloc.h`` numbers them."""


def keep_freed_memory() -> None:
    """For this process; nothing where the C library is another."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_MAX, 0)
        library.mallopt(TRIM_THRESHOLD, -1)
