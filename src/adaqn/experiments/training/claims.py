"""Who works in a folder: files that are made exclusively, so that of many processes on many machines one has it.

A claim is a file ``claim.N`` with its owner in it; that with the highest number rules. It is made by ``O_EXCL``, which
one process alone can do, also on NFS. Nobody takes away the claim of somebody else: who finds the last one to be over
makes the next, and of several that try one succeeds. A claim is over when its owner said so, when its process is gone
from this machine, or when it gave no sign of life for ``STALE`` seconds. Times are compared on the clock of the file
system alone, for the clocks of two machines may differ. That clock may have been set back since: a sign of life from
the far future is none, for who lives gives the next one within seconds.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import parse_json
from adaqn.experiments.schema import Schema, number, record, text

CLAIM = "claim"
HEARTBEAT, STALE = 10.0, 120.0
"""Seconds between two signs of life, and without one until the claim is over. NFS may show files as they were up to
60 seconds ago."""
LARGEST = 4096
"""Bytes of a claim."""
OWNER: Schema = record(
    {"host": text, "pid": number(1, 2**31 - 1, whole=True), "started": number(0, whole=True, null=True), "token": text}
)
"""What a claim says."""


class BusyError(UserError):
    """Somebody else is at work there."""


class ClaimLostError(UserError):
    """Another process has the work by now: this one gave no sign of life for too long."""


@dataclass(frozen=True)
class Owner:
    """A process on a machine."""

    host: str
    pid: int
    started: int | None
    """By which it is told from a later process of the same number."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def is_here(self) -> bool:
        """Is it known whether it is at work? Of another machine that is not known."""
        return self.host == this_host()

    def is_gone(self) -> bool:
        """Is it known not to be at work any more?"""
        return self.is_here() and started(self.pid) != (True, self.started)


class Claim:
    """Of this process; ``check`` before every write."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path, self.owner = path, owner
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            with suppress(OSError):
                os.utime(self.path)

    def is_held(self) -> bool:
        owner, _ = _read(self.path)
        return owner == self.owner and not _after(self.path).exists()

    def check(self) -> None:
        if not self.is_held():
            raise ClaimLostError(
                f"another process has taken over {self.path.parent}, because this one gave no sign of life for "
                f"{STALE:g} seconds"
            )

    def end(self, *, forget: bool) -> None:
        """Others may begin; ``forget`` removes all traces, where there is no work left to be claimed."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            if self.is_held():
                os.utime(self.path, (0, 0))
                for path in _claims(self.path.parent) if forget else ():
                    path.unlink(missing_ok=True)


def take(folder: Path) -> Claim | None:
    """The claim on a folder that is there; ``None`` if somebody else is at work in it."""
    here, pid = this_host(), os.getpid()
    owner = Owner(here, pid, started(pid)[1])
    claims = _claims(folder)
    if claims:
        with _now(folder, owner) as now:
            if _is_alive(claims[-1], now):
                return None
    path = _after(claims[-1]) if claims else folder / f"{CLAIM}.0"
    try:
        with path.open("xb") as file:
            file.write(json.dumps(asdict(owner)).encode())
    except FileExistsError:  # somebody else was quicker
        return None
    return Claim(path, owner)


def busy(folder: Path, now: float) -> str | None:
    """Who seems to be at work in a folder, as a person reads it; ``now`` is the time, as far as one knows."""
    claims = _claims(folder)
    if not claims or not _is_alive(claims[-1], now):
        return None
    owner, _ = _read(claims[-1])
    return "another process" if owner is None else f"process {owner.pid} of {owner.host.partition('/')[0]}"


def ruling(folder: Path) -> Path:
    """The file by which somebody has that folder."""
    return (_claims(folder) or [folder / f"{CLAIM}.0"])[-1]


def _claims(folder: Path) -> list[Path]:
    """The one that rules is the last."""
    numbered = {int(path.suffix[1:]): path for path in folder.glob(f"{CLAIM}.*") if path.suffix[1:].isdecimal()}
    return [numbered[number] for number in sorted(numbered)]


def _after(claim: Path) -> Path:
    return claim.with_suffix(f".{int(claim.suffix[1:]) + 1}")


def _is_alive(claim: Path, now: float) -> bool:
    owner, beat = _read(claim)
    if owner is None or not owner.is_here():
        return abs(now - beat) < STALE
    return now - beat < STALE and not owner.is_gone()  # whose process is there lives, whatever the clock says


def _read(claim: Path) -> tuple[Owner | None, float]:
    """(Its owner, its last sign of life). NFS shows the newest state of a file to who opens it."""
    try:
        with open(claim, "rb", opener=_opened) as file:
            said, beat = file.read(LARGEST), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:  # a run that was finished meanwhile
        return None, 0.0
    try:
        values = parse_json(said.decode("utf-8"))
        OWNER(values, "")
        return Owner(**values), beat
    except (ValueError, TypeError):  # its owner was killed while it wrote, or it is damaged
        return None, beat


def _opened(path: str, flags: int) -> int:
    """A regular file: a pipe of that name would be waited for."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{os.path.basename(path)} is no regular file, and so no claim", path)
    return descriptor


@contextmanager
def _now(folder: Path, owner: Owner) -> Iterator[float]:
    """The time as the file system of that folder has it."""
    clock = folder / f".{CLAIM}.{owner.token}.tmp"
    try:
        clock.write_bytes(b"")
        yield clock.stat().st_mtime
    finally:
        clock.unlink(missing_ok=True)


def this_host() -> str:
    """Where a number of a process means this process: a name, a boot of its kernel, and a space of process numbers."""
    name = platform.node()
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{name}/{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return name


def started(pid: int) -> tuple[bool, int | None]:
    """(Is there such a process, when did it start); ``None`` where the system does not say."""
    if os.name != "posix":
        return True, None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False, None
    except PermissionError:
        pass
    try:
        state, *later = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state not in "ZX", int(later[18])
    except (OSError, ValueError, IndexError):
        return True, None
