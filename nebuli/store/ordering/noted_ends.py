"""The ends of an ordering's logs, noted in a file of their own whenever an append is acknowledged.

SQLite takes a damaged frame of its write-ahead log for one that a crash has torn, and drops it with all that follow. A
lost end looks the same as one that was never written, so another file has to have it.
"""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILE = "ordering.ends"
_SLOT = struct.Struct("<QQQ8x")
"""The last sequence, a hash of the log's key, and a checksum of both; no slot lies across two sectors of a disk."""


class NotedEnds:
    """A slot for each log, at its number. Each note is a lower bound: the log ends there, or later.

    Nothing is synced with an append, which would cost a second sync. A note outlives its process, as the kernel has it;
    a loss of power may take the last of them, and never leaves one beyond what the log has synced before.
    """

    def __init__(self, folder: Path) -> None:
        """Open the file, made if it is not there. Raises OSError."""
        self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map: mmap.mmap | None = None

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
        os.close(self._descriptor)

    def read(self) -> dict[int, tuple[int, int]]:
        """The noted ends by the number of the log, with the hash of its key. Raises OSError.

        A slot that is not as it was written notes nothing.
        """
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, size - size % _SLOT.size, 0)
        found = {}
        for number, (last, key, checksum) in enumerate(_SLOT.iter_unpack(data)):
            if last and checksum == _checksum(number, last, key):
                found[number] = last, key
        return found

    def note(self, ends: Iterable[tuple[int, str, int]]) -> None:
        """Note where logs end, by number and key. A disk that is full leaves an older note."""
        for number, key, last in ends:
            slots = self._slots(number)
            if slots is not None:
                hashed = hash_of(key)
                _SLOT.pack_into(slots, number * _SLOT.size, last, hashed, _checksum(number, last, hashed))

    def _slots(self, number: int) -> mmap.mmap | None:
        """The file in memory, large enough for a slot: to write there costs no call, and changes no times."""
        end = (number + 1) * _SLOT.size
        if self._map is None or len(self._map) < end:
            with suppress(OSError):
                size = max(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, os.fstat(self._descriptor).st_size)
                os.posix_fallocate(self._descriptor, 0, size)  # a page without a place would end the process
                self._map = mmap.mmap(self._descriptor, 0)
        return self._map if self._map is not None and len(self._map) >= end else None

    def note_all(self, ends: Mapping[int, tuple[str, int]]) -> None:
        """The same, durably, if it is not noted yet."""
        noted = self.read()
        new = [
            (number, key, last)
            for number, (key, last) in ends.items()
            if noted.get(number) != (last, hash_of(key))
        ]
        self.note(new)
        if new:
            with suppress(OSError):
                os.fsync(self._descriptor)


def hash_of(key: str) -> int:
    """The hash that a note has of its log's key."""
    return xxh3_64_intdigest(key.encode())


def _checksum(number: int, last: int, key: int) -> int:
    return xxh3_64_intdigest(struct.pack("<QQQ", number, last, key))
