"""Files that nobody needs any more, kept for a while to be written again, with the memory and the blocks they have.

Much of the time that a new file takes goes into finding it memory for its pages and room on the disk.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from .layout import SPARE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .files import File, FileSystem

LEAST_BYTES = 1 << 20
"""A smaller file is not worth it."""


class _Spare(NamedTuple):
    path: Path
    size: int


class Spares:
    """Those in a folder, of ``limit`` bytes at most. May be used by several threads. Methods raise OSError."""

    def __init__(self, files: FileSystem, folder: Path, limit: int) -> None:
        self._files = files
        self._folder = folder
        self._limit = limit
        self._lock = Lock()
        self._numbers = itertools.count()
        self._spares: list[_Spare] = []  # the one that was kept last is taken first
        self._unused = 0  # so many of them, the oldest, were there at the last `age` and not taken since

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(spare.size for spare in list(self._spares))

    def remove(self, gone: Iterable[tuple[Path, int]], *, durably: bool) -> None:
        """Keep files of so many bytes, or delete them; a name that is not there is none to care about.

        ``durably``: their names are gone when it returns, whatever happens then.
        """
        kept: list[_Spare] = []
        for path, size in gone:
            with suppress(FileNotFoundError):
                if size < LEAST_BYTES or self.bytes + sum(spare.size for spare in kept) + size > self._limit:
                    self._files.unlink(path)
                else:
                    spare = _Spare(self._folder / f"{next(self._numbers)}{SPARE}", size)
                    self._files.rename(path, spare.path)
                    kept.append(spare)
        if durably or kept:
            # Before one is written again: under its old name, nobody is to find what is new.
            self._files.sync_directory(self._folder)
        with self._lock:
            self._spares += kept

    def take(self, path: Path) -> File | None:
        """A file of any size and contents, under a name that is free; None if there is none."""
        with self._lock:
            if not self._spares:
                return None
            spare = self._spares.pop()
            self._unused = min(self._unused, len(self._spares))
        self._files.rename(spare.path, path)
        try:
            return self._files.open(path)
        except OSError:
            self._files.unlink(path)
            raise

    def age(self) -> None:
        """Delete those that have not been taken since the last time."""
        self._delete(self._unused)
        self._unused = len(self._spares)

    def clear(self) -> bool:
        """Delete all, to make room; whether there were any."""
        return self._delete(len(self._spares)) > 0

    def _delete(self, count: int) -> int:
        with self._lock:
            gone, self._spares = self._spares[:count], self._spares[count:]
            self._unused = 0
        for spare in gone:
            self._files.unlink(spare.path)
        return len(gone)
