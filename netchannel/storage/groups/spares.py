"""Files that are no longer needed, kept for a while to be written again, with the memory and the blocks they have.

Much of the time that a new file takes goes into finding it memory for its pages and room on the disk.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from netchannel.storage.files import abandon_in_children
from netchannel.storage.layout import SPARE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from netchannel.storage.files import File, FileSystem

LEAST_BYTES = 1 << 20
"""A smaller file is not worth it."""


class Spare:
    """A file of ``size`` bytes of any contents; its taker sets how many are ``used``."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.used = 0


class Spares:
    """The spare files in a folder: ``limit`` bytes at most, and none where the disk has not as much again free.

    May be used by several threads.
    """

    def __init__(self, files: FileSystem, folder: Path, limit: int) -> None:
        self._files = files
        self._folder = folder
        self._limit = limit
        self._lock = Lock()
        self._numbers = itertools.count()
        self._free: list[Spare] = []  # the one that was kept last is taken first
        self._idle = 0  # so many of them, the oldest, were there at the last `age` and not taken since
        self._taken: set[Spare] = set()
        self._bytes = 0  # of all of them
        abandon_in_children(self)

    @property
    def bytes(self) -> int:
        """Bytes of the files that are free, and of what is not used of others."""
        return self._bytes - sum(min(spare.used, spare.size) for spare in list(self._taken))

    @staticmethod
    def worth(size: int) -> bool:
        """True if a file of so many bytes is worth keeping."""
        return size >= LEAST_BYTES

    def remove(self, gone: Iterable[tuple[Path, int]], *, durably: bool) -> None:
        """Keep files of so many bytes, or delete them; a missing one is ignored.

        ``durably``: their names are durably gone when it returns. Raises OSError, once all that can be
        done is done.
        """
        kept: list[Spare] = []
        failures: list[OSError] = []
        for path, size in gone:
            spare = self._kept(path, size)
            if spare is not None:
                kept.append(spare)
                continue
            try:
                with suppress(FileNotFoundError):
                    self._files.unlink(path)
            except OSError as error:
                failures.append(error)
        if durably or kept:
            try:
                # Before one is written again: under its old name, the new contents must not be found.
                self._files.sync_directory(self._folder)
            except OSError as error:
                failures.append(error)
                with self._lock:
                    kept = [spare for spare in kept if not self._deleted(spare)]
        with self._lock:
            self._free += kept
        if failures:
            raise failures[0]

    def _kept(self, path: Path, size: int) -> Spare | None:
        """The file as a spare one, if it is worth it, there is room for it, and the disk lets us."""
        if not self.worth(size) or self._bytes + size > self._limit:
            return None
        spare = Spare(self._folder / f"{next(self._numbers)}{SPARE}", size)
        try:
            if self._files.free_bytes(self._folder) < self._limit:
                return None
            self._files.rename(path, spare.path)
        except OSError:
            return None
        with self._lock:
            self._bytes += size
        return spare

    def take(self) -> tuple[Spare, File] | None:
        """Return a spare file, open, under the name that it has; None if there is none. For `settle` in the end."""
        with self._lock:
            if not self._free:
                return None
            spare = self._free.pop()
            self._idle = min(self._idle, len(self._free))
            self._taken.add(spare)
        try:
            return spare, self._files.open(spare.path)
        except OSError:
            self.give_back(spare)
            return None

    def give_back(self, spare: Spare) -> None:
        """Delete a file that was taken and is not wanted."""
        with self._lock:
            self._taken.discard(spare)
            self._deleted(spare)

    def settle(self, spare: Spare) -> None:
        """A file that was taken counts no more: it is an attempt's, or is gone."""
        with self._lock:
            self._taken.discard(spare)
            self._bytes -= spare.size

    def age(self) -> None:
        """Delete those that have not been taken since the last time."""
        with self._lock:
            self._clear(self._idle)
            self._idle = len(self._free)

    def clear(self) -> None:
        """Delete all that are free, to make room."""
        with self._lock:
            self._clear(len(self._free))

    def abandon(self) -> None:
        """Leave the files to the parent: for a forked child."""
        self._lock = Lock()
        self._free = []

    def _clear(self, count: int) -> None:
        gone, self._free = self._free[:count], self._free[count:]
        left = [spare for spare in gone if not self._deleted(spare)]
        self._free[:0] = left
        self._idle = len(left)

    def _deleted(self, spare: Spare) -> bool:
        """True if that could be done; otherwise it is tried again with the next ones."""
        try:
            with suppress(FileNotFoundError):
                self._files.unlink(spare.path)
        except OSError:
            return False
        self._bytes -= spare.size
        return True
