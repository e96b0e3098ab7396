"""`SupervisorFiles`: by which a source has one supervisor on a host, and where that one's log is."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from xxhash import xxh3_64_hexdigest

from nebuli.durable_files import make_directory
from nebuli.ingestion.errors import SourceRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.store.store_url import StorePlace

_TAKE_S = 0.5
"""Whoever only looks has the lock for a moment, too."""
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class SupervisorFiles:
    """In the store's folder, or, of one by URL, in ``state``, the folder of what is to last of this account.

    The lock is the system's own (flock), and gone with the process that has it.
    """

    source: str
    lock: Path
    log: Path

    @classmethod
    def at(cls, place: StorePlace, source: str, state: Path) -> SupervisorFiles:
        """Those of a source; the folder is made. Raises OSError."""
        if isinstance(place, Path):
            folder = place / "sources"
        else:
            folder = state / "sources" / xxh3_64_hexdigest(str(place).encode())
        make_directory(folder)
        return cls(source, folder / f"{source}.lock", folder / f"{source}.log")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the supervisor. Raises SourceRefused if another process is, OSError."""
        file = self._taken()
        if file is None:
            raise SourceRefused(
                f"source {self.source} is run on this host by process {self.holder() or '(not known yet)'} "
                f"already: let it be, or end that one first"
            )
        with file:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def remove(self) -> None:
        """Remove both, of a source that was dropped, unless one of its name is run already. Raises OSError."""
        file = self._taken()
        if file is not None:
            with file:
                self.log.unlink(missing_ok=True)
                self.lock.unlink()

    def _taken(self) -> TextIO | None:
        """The lock's file, with the lock; None: another process has it."""
        deadline = time.monotonic() + _TAKE_S
        while True:
            file = self.lock.open("a+", encoding="utf-8")
            if self._is_taken(file):
                return file
            file.close()
            if time.monotonic() > deadline:
                return None
            time.sleep(_STEP_S)

    def _is_taken(self, file: TextIO) -> bool:
        """Have the lock by this file, if nobody has it; one that was removed since it was opened locks nobody out."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = self.lock.stat()
        except (BlockingIOError, FileNotFoundError):
            return False
        return os.path.samestat(there, os.fstat(file.fileno()))

    def holder(self) -> int | None:
        """The process that is the supervisor, if one is; 0 if it has only just begun. Raises OSError."""
        try:
            with self.lock.open("r", encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    text = file.read()
                    return int(text) if text.isdecimal() else 0
        except FileNotFoundError:
            pass
        return None
