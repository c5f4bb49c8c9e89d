"""Files of a run: written whole or not at all, read with care."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from adaqn.experiments.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """The file is the old one or the new one, never half of either, even if the power fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}. What was there before is intact") from error


@contextmanager
def warnings_kept(folder: Path) -> Iterator[None]:
    """Warnings go into ``warnings.txt`` of that folder instead of through the progress bars."""

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "warnings.txt").open("a", encoding="utf-8") as file:
            file.write(f"{category.__name__}: {message}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def json_text(value: Any, **layout: Any) -> str:
    """JSON that every parser reads: a number that is not finite becomes null."""
    return json.dumps(_finite(value), allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json_text(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {path}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); it was left in place") from error


CHECKPOINT_ENTRIES = {
    "identity", "data_sha256", "step", "seconds", "model", "optimizer", "hidden", "loss_sum", "pairs_sum", "summed",
    "measured", "random",
}  # fmt: skip


class _Buffer:
    """What ``torch.save`` writes, kept in memory so that it reaches the disk in one go."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass


def save_checkpoint(path: Path, value: dict[str, Any]) -> None:
    buffer = _Buffer()
    torch.save(value, buffer)  # type: ignore[arg-type]
    write_atomically(path, b"".join(buffer.parts))


def load_checkpoint(path: Path, known_classes: Sequence[type] = ()) -> dict[str, Any]:
    """Tensors and plain values, and objects of ``known_classes`` that an optimizer of others keeps in its state."""
    try:
        with torch.serialization.safe_globals(list(known_classes)):
            value = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(
            f"{path} is damaged or no checkpoint ({type(error).__name__}); it was left in place. Delete it to start "
            "this run anew"
        ) from error
    if not isinstance(value, dict) or not set(value) >= CHECKPOINT_ENTRIES:
        raise UserError(f"{path} is no checkpoint of a run; it was left in place")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a ``metrics.jsonl``; a last line that a kill cut short is dropped."""
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); it was left in place") from error
    records = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise UserError(f"{path} is damaged in line {number + 1}; it was left in place")
            records.append(record)
        except json.JSONDecodeError as error:
            if number == len(lines) - 1:
                break
            raise UserError(f"{path} is damaged in line {number + 1}; it was left in place") from error
    return records
