"""Files are read here, JSON above all: every way in which that fails is one line that names the file."""

from __future__ import annotations

import hashlib
import json
import math
import stat
from pathlib import Path
from typing import Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.schema import LARGEST, LEFT, Schema, anything, check, record

LARGEST_JSON = 256 * 1024 * 1024
"""Bytes; the longest run of the study leaves a hundredth of it."""
DEEPEST = 100
"""Lists in lists, or named values in named values."""
SEALED, CHECKSUM = "sealed", "sha256"
"""Entries of a file with a checksum: one that is lost or changed cannot hide that there should be the other."""


class BrokenJSONError(ValueError):
    """A text that is no JSON, or holds what no file of ours does."""


def content(path: Path, largest: int | None = None) -> bytes:
    """The bytes of a regular file. A pipe or a device would be waited for, so that nothing else is opened."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            what = "a folder" if stat.S_ISDIR(about.st_mode) else "no regular file"
            raise UserError(f"{path} is {what}, where a file should be; it was left in place")
        if largest is not None and about.st_size > largest:
            raise UserError(f"{path} is damaged: it has {about.st_size} bytes, and at most {largest} are read")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no {path}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a null byte in its name
        raise UserError(f"{str(path)!r} cannot be read: {error}") from error
    except MemoryError as error:
        raise UserError(f"{path} cannot be read: it does not fit into memory") from error


def content_text(path: Path) -> str:
    """A file of UTF-8, with every end of a line as one character."""
    try:
        return content(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 (byte {error.start}): convert it first, for instance with iconv"
        ) from error


def is_there(path: Path) -> bool:
    """Is there something of that name? What cannot be looked at is an error, and not a no."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    return True


def parse_json(text: str) -> Any:
    """The value of a text; a number that is not finite is null, as we write it.

    >>> parse_json('{"a": [1, NaN]}')
    {'a': [1, None]}
    """
    try:
        value = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise BrokenJSONError(str(error)) from error
    except RecursionError as error:
        raise BrokenJSONError(f"it is nested more than {DEEPEST} deep") from error
    _check_depth(value)
    if "\\u" in text and not is_utf8(value):
        raise BrokenJSONError("a text in it has half a character")
    return value


def _whole(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > LARGEST:
        raise BrokenJSONError(f"a whole number of {len(digits.lstrip('-'))} digits: at most {LARGEST} is read")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BrokenJSONError(f"{digits[:20]} is too large for a number")
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise BrokenJSONError(f"it is nested more than {DEEPEST} deep")
        inside = [v for v in level if isinstance(v, dict | list)]
        level = [entry for v in inside for entry in (v.values() if isinstance(v, dict) else v)]
        depth += 1


def is_utf8(value: Any) -> bool:
    r"""Can it be printed and written? Half a character cannot, as ``\ud800`` is, nor the name of a file that is none.

    >>> is_utf8({"data": "é.txt"}), is_utf8(["\udce9.txt"])
    (True, False)
    """
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path, schema: Schema = anything) -> Any:
    """What a file says, once it is known to fit. A file with a checksum is compared with it."""
    value = _parsed(path, content(path, LARGEST_JSON))
    if isinstance(value, dict) and (SEALED in value or CHECKSUM in value):
        found, _ = value.pop(CHECKSUM, None), value.pop(SEALED, None)
        if found != checksum(value):
            raise UserError(f"{path} is damaged: its content does not have its checksum; {LEFT}")
    check(value, schema, path)
    return value


def _parsed(path: object, data: bytes) -> Any:
    try:
        return parse_json(data.decode("utf-8"))
    except (BrokenJSONError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); {LEFT}") from error


def checksum(value: dict[str, Any]) -> str:
    """Of the values, however they are laid out."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """The same with its checksum: one changed bit is noticed when it is read. Needs plain, finite values."""
    return {**value, SEALED: True, CHECKSUM: checksum(value)}


def read_lines(path: Path, schema: Schema | None = None) -> list[dict[str, Any]]:
    """The complete lines of a ``metrics.jsonl``; a last line that a kill cut short is dropped."""
    if not is_there(path):
        return []
    *lines, last = content(path, LARGEST_JSON).split(b"\n")
    records = []
    for number, line in enumerate([*lines, last] if _is_whole(last) else lines):
        if line.strip():
            name = f"{path}, line {number + 1},"
            value = _parsed(name, line)
            check(value, schema or record({}), name)
            records.append(value)
    return records


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line.decode("utf-8")), dict)
    except ValueError:
        return False
