"""What a machine can hold, so that what cannot fit is told before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import torch

CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container says what it was given: it is ended if it takes more, without a word."""


def memory_of(device: torch.device) -> int | None:
    """Bytes of that device, used or not; ``None`` where nobody knows."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system has them
        return None
    given = [limit for path in CGROUPS if (limit := _limit(Path(path))) is not None]
    return min([installed, *given])


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or no limit
        return None


def check_fits(needed: int, device: torch.device, what: str, advice: str) -> None:
    """A ``ValueError`` if so many bytes are more than the device has."""
    here = memory_of(device)
    if here is not None and needed > here:
        raise ValueError(f"{what} needs at least {in_words(needed)}, and {device} has {in_words(here)}: {advice}")


def in_words(count: int) -> str:
    """A number of bytes.

    >>> in_words(3_200_000_000), in_words(12_345), in_words(5 * 10**25)
    ('3.2 GB', '12.3 kB', '50,000,000,000,000 TB')
    """
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count // size:,} {unit}" if count >= 100 * size else f"{count / size:.3g} {unit}"
    return f"{count} bytes"
