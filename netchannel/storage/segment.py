"""One segment of a log: where its entries are, and what is in them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from netchannel.wire.pool import Pool

from .failures import damaged, unreadable
from .files import fill, read_all
from .layout import (
    BLOB,
    ENTRY_HEADER,
    MESSAGES,
    NAME_BYTES,
    SEGMENT_HEADER,
    Entry,
    entry_bytes,
    is_payload,
    padding,
    unpack_entry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .files import File

_INDEX_STRIDE = 1 << 16
"""An index entry for every so many bytes of a segment: what a random read scans at most, records apart."""
HEADERS = 1 << 12
"""Bytes that are read at a time where only headers are wanted."""
WINDOW = 1 << 16
"""Bytes that are read at a time, unless more is requested."""


class Outline(NamedTuple):
    """A record without its payload; ``size``, ``rows`` and ``timestamp`` are the writer's."""

    first: int
    end: int
    size: int
    rows: int
    timestamp: int


class LogRecord(NamedTuple):
    """A record as it was appended. Equal schemas, and equal contexts, are one object as a rule."""

    first: int
    end: int
    timestamp: int
    flags: int
    size: int
    rows: int
    payload: memoryview
    schema: bytes
    context: bytes


class Segment:
    """A segment and the places of its records. Its entries go up to ``size``, and are durable up to ``durable``."""

    def __init__(self, path: Path, base: int, salt: int) -> None:
        self.path = path
        self.base = base
        self.salt = salt
        self.end = base
        self.size = SEGMENT_HEADER
        self.durable = 0
        self._offsets = array("Q", [SEGMENT_HEADER])
        self._firsts = array("Q", [base])

    def add(self, entry: Entry) -> None:
        """An entry stands at ``size`` now."""
        if entry.kind in MESSAGES:
            if self.size - self._offsets[-1] >= _INDEX_STRIDE:
                # In this order: a reader in another thread looks for a number first.
                self._offsets.append(self.size)
                self._firsts.append(entry.first)
            self.end = entry.end
        self.size += entry_bytes(entry.length)

    def seek(self, sequence: int) -> int:
        """The offset of an entry at, or not far before, the record with number ``sequence``."""
        return self._offsets[bisect_right(self._firsts, sequence) - 1]


class Window:
    """A file, read ``size`` bytes at a time, one piece after the other, into memory of ``pool``.

    ``entry`` is the size of the last entry that was met: the next is likely to be like it, and so as many are read as
    are whole.
    """

    def __init__(self, file: File, size: int, pool: Pool) -> None:
        self._file = file
        self._size = size
        self._pool = pool
        self._data = memoryview(b"")
        self._base = 0
        self.entry = 1

    def get(self, offset: int, size: int, stop: int) -> memoryview:
        """``size`` bytes from ``offset``, or fewer where the file ends; nothing from ``stop`` on is of use."""
        start = offset - self._base
        if start < 0 or start + size > len(self._data):
            alike = max(1, self._size // self.entry) * self.entry
            wanted = max(size, min(alike, stop - offset))
            self._data = fill(self._file, self._pool.take(wanted), offset).toreadonly()
            self._base, start = offset, 0
        return self._data[start : start + size]


def walk(
    file: File, salt: int, start: int, stop: int, window: Window | None = None
) -> Iterator[tuple[int, Entry]]:
    """The entries between two offsets, by their headers; ends early where none is valid.

    They are read through a ``window`` if payloads are wanted too.
    """
    window = window or Window(file, HEADERS, Pool())
    while start < stop:
        entry = unpack_entry(window.get(start, ENTRY_HEADER, stop), start, salt)
        if entry is None or start + (size := entry_bytes(entry.length)) > stop:
            return
        window.entry = size
        yield start, entry
        start += size


def read_payload(file: File, offset: int, entry: Entry) -> memoryview | None:
    """The payload of the entry at ``offset``; None if it does not match its sum."""
    data = read_all(file, entry.length + padding(entry.length), offset + ENTRY_HEADER)
    if not is_payload(data, entry):
        return None
    return memoryview(data)[: entry.length]


class SegmentReader:
    """Reads one segment through a descriptor of its own, so that it can be deleted meanwhile.

    ``known`` maps names of blobs to contents, across segments, so that equal ones are one object. It reads ``size``
    bytes at a time, into memory of ``pool``.
    """

    def __init__(
        self,
        file: File,
        segment: Segment,
        known: dict[bytes, bytes],
        size: int,
        pool: Pool,
    ) -> None:
        self._file = file
        self._window = Window(file, size, pool)
        self._segment = segment
        self._known = known
        self._blobs: dict[int, bytes] = {0: b""}

    def headers(self, sequence: int) -> Iterator[tuple[int, Entry]]:
        """The durable records from the one that holds ``sequence``, also those that become durable meanwhile.

        Raises LogDamaged, LogBroken.
        """
        segment = self._segment
        offset = segment.seek(sequence)
        try:
            while offset < segment.durable:
                stop = segment.durable
                for at, entry in walk(self._file, segment.salt, offset, stop, self._window):
                    offset = at + entry_bytes(entry.length)
                    if entry.kind in MESSAGES and entry.end > sequence:
                        yield at, entry
                if offset != stop:
                    raise damaged(segment.path, offset, "no entry is there")
        except OSError as error:
            raise unreadable(segment.path, offset, error) from error

    def outline(self, entry: Entry) -> Outline:
        """Return the contents of the header."""
        return Outline(entry.first, entry.end, entry.size, entry.rows, entry.timestamp)

    def record(self, offset: int, entry: Entry) -> LogRecord:
        """The record at ``offset``. Raises LogDamaged, LogBroken."""
        try:
            payload = self._payload(offset, entry)
            schema, context = self._blob(entry.schema), self._blob(entry.context)
        except OSError as error:
            raise unreadable(self._segment.path, offset, error) from error
        return LogRecord(
            entry.first,
            entry.end,
            entry.timestamp,
            entry.flags,
            entry.size,
            entry.rows,
            payload,
            schema,
            context,
        )

    def _payload(self, offset: int, entry: Entry) -> memoryview:
        length = entry.length + padding(entry.length)
        data = self._window.get(offset + ENTRY_HEADER, length, self._segment.durable)
        if not is_payload(data, entry):
            what = f"the payload of messages {entry.first} to {entry.end} does not match its checksum"
            raise damaged(self._segment.path, offset, what)
        return data[: entry.length]

    def _blob(self, offset: int) -> bytes:
        content = self._blobs.get(offset)
        if content is None:
            segment = self._segment
            head = read_all(self._file, ENTRY_HEADER, offset)
            entry = unpack_entry(head, offset, segment.salt)
            if entry is None or entry.kind != BLOB:
                raise damaged(segment.path, offset, "a schema or context is missing")
            payload = read_payload(self._file, offset, entry)
            if payload is None:
                raise damaged(segment.path, offset, "a schema or context does not match its checksum")
            name = bytes(payload[:NAME_BYTES])
            content = self._known.setdefault(name, bytes(payload[NAME_BYTES:]))
            self._blobs[offset] = content
        return content
