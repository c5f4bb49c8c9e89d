"""Files of a run are written whole or not at all, and are on the disk when that is said."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import sealed

WARNINGS = "warnings.txt"


def write_atomically(path: Path, *parts: bytes) -> None:
    """The file is the old one or the new one, never half of either, even if the power fails."""
    write_by(path, lambda file: file.writelines(parts))


def write_by(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """The same by a function that is given the file."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        if path.exists() and not path.is_file():  # root could put a file into the place of a device
            raise UserError(f"cannot write {path}: there is something that is no file; it was left in place")
        make_folder(path.parent)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, ValueError) as error:  # a null byte in its name is the latter
        _remove(temporary)
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot write {path}: {reason}. What was there before is intact") from error


def _remove(temporary: Path) -> None:
    with suppress(OSError, ValueError):
        temporary.unlink()


def append(path: Path, line: bytes) -> None:
    """One more line, which stays even if the power fails."""
    try:
        is_new = not path.exists()
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def make_folder(folder: Path) -> list[Path]:
    """With those above it; returns what was made, the outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)
    return missing


def sync_folder(folder: Path) -> None:
    """The names in it reach the disk too: without that a file is there, and nobody finds it."""
    if os.name != "posix":
        return  # elsewhere a folder cannot be opened, and names need no help
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def warnings_kept(folder: Path) -> Iterator[None]:
    """Warnings go into ``warnings.txt`` of that folder instead of through the progress bars; once there is a folder."""
    waiting: list[str] = []

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        waiting.append(f"{category.__name__}: {message}")
        write()

    def write() -> None:
        while waiting and folder.is_dir():
            keep_warning(folder, waiting.pop(0))

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        try:
            yield
        finally:
            write()


def keep_warning(folder: Path, text: str) -> None:
    with (folder / WARNINGS).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def json_text(value: Any, **layout: Any) -> str:
    """JSON that every parser reads: a number that is not finite becomes null."""
    return json.dumps(finite(value), allow_nan=False, **layout)


def finite(value: Any) -> Any:
    """Plain values as JSON has them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json_text(value, indent=2, sort_keys=True) + "\n").encode())


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """With a checksum, by which :func:`~adaqn.experiments.reading.read_json` notices a changed bit."""
    write_json(path, sealed(finite(value)))
