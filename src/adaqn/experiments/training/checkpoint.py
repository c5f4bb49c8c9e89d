"""The file of a checkpoint: what ``torch.save`` writes, and a checksum behind it that is looked at first."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from adaqn.experiments.errors import UserError
from adaqn.experiments.training.storage import write_by

MARK = b"\nadaqn sha256 "
"""Between the two. The format of ``torch.save`` is a zip file, whose readers ignore what follows its end."""
TRAILER = len(MARK) + 64
AT_ONCE = 1 << 20
ENTRIES = {
    "identity", "data_sha256", "step", "seconds", "model", "optimizer", "hidden", "loss_sum", "pairs_sum", "summed",
    "measured", "random",
}  # fmt: skip
AGAIN = "it was left in place. Delete it to start this run anew"


class _Summed:
    """What ``torch.save`` writes goes into the file at once: the state of a large model is not held twice in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self.file.write(data)
        except OSError as error:  # torch would make another one of it
            self.error = self.error or error
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        pass


def save_checkpoint(path: Path, value: dict[str, Any]) -> None:
    def write(file: IO[bytes]) -> None:
        summed = _Summed(file)
        torch.save(value, summed)  # type: ignore[arg-type]
        if summed.error is not None:
            raise summed.error
        file.writelines([MARK, summed.digest.hexdigest().encode()])

    write_by(path, write)


def load_checkpoint(path: Path, known_classes: Sequence[type] = ()) -> dict[str, Any]:
    """Tensors and plain values, and objects of ``known_classes`` that an optimizer of others keeps in its state.

    Nothing in it is used before its checksum is known to be right. torch itself compares nothing: it takes a weight
    with a changed bit as it is.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path} is no regular file, and so no checkpoint; it was left in place")
        with path.open("rb") as file:
            _check_content(file, path)
            file.seek(0)
            with torch.serialization.safe_globals(list(known_classes)):
                value = torch.load(file, weights_only=True, map_location="cpu")
    except (UserError, KeyboardInterrupt):
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(f"{path} is damaged or no checkpoint ({type(error).__name__}); {AGAIN}") from error
    if not isinstance(value, dict) or not set(value) >= ENTRIES:
        raise UserError(f"{path} is no checkpoint of a run; it was left in place")
    return value


def load_model(model: nn.Module, checkpoint: dict[str, Any], path: Path) -> None:
    """Its weights; one line for those of another model."""
    try:
        model.load_state_dict(checkpoint["model"])
    except Exception as error:  # torch raises several kinds
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} does not fit its run ({type(error).__name__}: {reason}); {AGAIN}") from error


def _check_content(file: IO[bytes], path: Path) -> None:
    """Against the checksum; one of a version without it against those that zip files have of their members."""
    length = file.seek(0, 2)
    file.seek(max(0, length - TRAILER))
    trailer = file.read()
    if not trailer.startswith(MARK):
        _check_members(file, path)
        return
    file.seek(0)
    digest, left = hashlib.sha256(), length - TRAILER
    while left:
        part = file.read(min(AT_ONCE, left))
        if not part:
            break  # somebody is cutting it: the checksum will tell
        digest.update(part)
        left -= len(part)
    if digest.hexdigest().encode() != trailer[len(MARK) :]:
        raise UserError(f"{path} is damaged: its content does not have its checksum; {AGAIN}")


def _check_members(file: IO[bytes], path: Path) -> None:
    file.seek(0)
    with zipfile.ZipFile(file) as members:
        wrong = members.testzip()
    if wrong is not None:
        raise UserError(f"{path} is damaged: {wrong} does not have its checksum; {AGAIN}")
