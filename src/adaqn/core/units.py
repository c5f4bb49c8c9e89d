"""Numbers for people to read."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def readable_size(size: float) -> str:
    """Bytes in decimal units, with three digits.

    >>> readable_size(512), readable_size(31_337_000_000), readable_size(999_950)
    ('512 bytes', '31.3 GB', '1.00 MB')
    """
    unit = 0
    while unit + 1 < len(_UNITS) and float(f"{size:.3g}") >= 1000:
        size, unit = size / 1000, unit + 1
    if unit == 0:
        return f"{size:.0f} bytes"
    return f"{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f} {_UNITS[unit]}"
