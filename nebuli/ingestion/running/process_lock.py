"""`ProcessLock`: a lock that a process of this host holds as long as it lives, with the process that holds it."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from nebuli.ingestion.errors import SourceRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAKE_S = 0.5
"""Any process that only looks has the lock for a moment, too."""
_STEP_S = 0.02
_STARTED = 19
"""The place of a process' start among the fields after its name (proc(5): field 22)."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock, and if it is ``supervised``; pid 0: it has only just begun, and is not known yet.

    A pid comes again; with the time at which it ``started``, in the system's ticks, it names one process.
    """

    pid: int
    started: int
    supervised: bool

    @classmethod
    def own(cls, *, supervised: bool) -> Self:
        """This process."""
        return cls(os.getpid(), _started(os.getpid()) or 0, supervised)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read what `to_text` gave; pid 0 if it was not written yet."""
        parts = text.split()
        whole = len(parts) == 3 and all(each.isdecimal() for each in parts)
        return cls(int(parts[0]), int(parts[1]), parts[2] == "1") if whole else cls(0, 0, False)

    def to_text(self) -> str:
        """The holder as it is kept in the lock's file."""
        return f"{self.pid} {self.started} {int(self.supervised)}\n"

    @property
    def is_running(self) -> bool:
        """True if this process, and no other one of its pid, runs."""
        return bool(self.pid) and _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    """Return when a process of this pid started; None: there is none, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *numbers = text.rpartition(")")[2].split()
    return None if state == "Z" else int(numbers[_STARTED - 1])


@dataclass(frozen=True, slots=True)
class ProcessLock:
    """The lock is the system's own (flock), and gone with the process that has it, however that ends.

    ``runs`` is what its holder does, in an error.
    """

    path: Path
    runs: str

    @contextmanager
    def held(self, *, supervised: bool = False) -> Iterator[None]:
        """Hold the lock. Raises SourceRefused if another process does, OSError."""
        file = self._taken()
        if file is None:
            holder = self.holder()
            raise SourceRefused(
                f"{self.runs} on this host by "
                f"{f'process {holder.pid}' if holder and holder.pid else 'another process'} already: "
                f"leave that process running, or end it first"
            )
        with file:
            file.truncate(0)
            file.write(LockHolder.own(supervised=supervised).to_text())
            file.flush()
            yield

    def remove(self) -> bool:
        """Remove its file, unless a process holds it; False: one does. Raises OSError."""
        file = self._taken()
        if file is None:
            return False
        with file:
            self.path.unlink()
        return True

    def _taken(self) -> TextIO | None:
        """The lock's file, with the lock; None: another process has it."""
        deadline = time.monotonic() + _TAKE_S
        while True:
            file = self.path.open("a+", encoding="utf-8")
            if self._is_taken(file):
                return file
            file.close()
            if time.monotonic() > deadline:
                return None
            time.sleep(_STEP_S)

    def _is_taken(self, file: TextIO) -> bool:
        """Have the lock by this file, if no process has it; one that was removed since it was opened locks none out."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = self.path.stat()
        except (BlockingIOError, FileNotFoundError):
            return False
        return os.path.samestat(there, os.fstat(file.fileno()))

    def holder(self) -> LockHolder | None:
        """The process that holds it; None: none does. Raises OSError."""
        try:
            with self.path.open("r", encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return LockHolder.of_text(file.read())
        except FileNotFoundError:
            pass
        return None
