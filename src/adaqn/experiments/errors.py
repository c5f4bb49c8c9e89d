"""Mistakes of a user, told in one line without a stack trace."""

from __future__ import annotations


class UserError(Exception):
    """Says what is wrong, what would be right, and what to do."""


OUT_OF_MEMORY = ("not enough memory", "out of memory", "std::bad_alloc", "Storage size calculation overflowed")
"""How torch says it, in errors of several kinds."""


def one_line(text: object) -> str:
    r"""What a terminal can show in one line, whatever was in a file or on the command line.

    >>> one_line("no task called 'a\nb'\x1b")
    "no task called 'a\\nb'\\x1b"
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text).strip())


def told(error: BaseException) -> str | None:
    """The line about an error that is not the program's own; ``None`` for a bug, of which the trace is to be seen."""
    if isinstance(error, UserError):
        return one_line(error)
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return one_line(f"{where}{error.strerror or error}: check the path, its permissions and the space on the disk")
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    ):
        return one_line(f"there is not enough memory ({str(error).splitlines()[0] if str(error) else 'none is left'})")
    return None
