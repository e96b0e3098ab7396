"""Records by number, while the log grows."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from netchannel.errors import PositionLost
from netchannel.wire.pool import Pool

from .failures import damaged, unreadable
from .segment import HEADERS, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .files import FileSystem
    from .layout import Entry
    from .segment import LogRecord, Outline, Segment

_KNOWN = 16
"""Contents that are remembered to be given out as one object."""


class LogContents:
    """The contents of a log: written by the log, read by its readers in any thread.

    ``segments`` is replaced as a whole, so that a reader that has taken it sees no change.
    """

    def __init__(self, segments: tuple[Segment, ...], acknowledged: int, start: int) -> None:
        self.segments = segments
        self._start = start
        self.acknowledged = acknowledged if segments else start
        self.durable = self.head

    @property
    def head(self) -> int:
        """The number of the next message."""
        return self.segments[-1].end if self.segments else self._start

    def drop_oldest(self) -> None:
        """Forget the oldest segment; of none, the head is remembered."""
        self._start = self.segments[0].end
        self.segments = self.segments[1:]

    def holding(self, sequence: int) -> Segment | None:
        """The segment that number ``sequence`` is in, or will be; None if it was deleted."""
        segments = self.segments
        index = bisect_right(segments, sequence, key=lambda segment: segment.base) - 1
        return segments[index] if index >= 0 else None


class LogReader:
    """Reads what is kept and durable."""

    def __init__(self, files: FileSystem, path: Path, stream: str, kept: LogContents) -> None:
        self._files = files
        self._path = path
        self._stream = stream
        self._kept = kept
        self._known: dict[bytes, bytes] = {}

    def read(self, sequence: int, window: int, pool: Pool | None) -> Iterator[LogRecord]:
        """Read records: see `SegmentLog.read`."""
        self._check(sequence)
        return self._read(sequence, window, pool or Pool())

    def outline(self, sequence: int) -> Iterator[Outline]:
        """Read outlines: see `SegmentLog.outline`."""
        self._check(sequence)
        return self._outline(sequence)

    def _check(self, sequence: int) -> None:
        if sequence < self._kept.acknowledged:
            raise self._lost(sequence)
        if sequence > self._kept.durable:
            raise ValueError(
                f"number {sequence} was requested, but only {self._kept.durable} are durable in {self._path}"
            )

    def _lost(self, sequence: int) -> PositionLost:
        return PositionLost(
            f"number {sequence} of stream {self._stream!r} was requested, but the messages in {self._path} "
            f"start at {self._kept.acknowledged}"
        )

    def _read(self, sequence: int, window: int, pool: Pool) -> Iterator[LogRecord]:
        for reader, offset, entry in self._entries(sequence, window, pool):
            yield reader.record(offset, entry)

    def _outline(self, sequence: int) -> Iterator[Outline]:
        for reader, _, entry in self._entries(sequence, HEADERS, Pool()):
            yield reader.outline(entry)

    def _entries(self, sequence: int, window: int, pool: Pool) -> Iterator[tuple[SegmentReader, int, Entry]]:
        while sequence < self._kept.durable:
            start = sequence
            for reader, offset, entry in self._entries_of_one_segment(sequence, window, pool):
                yield reader, offset, entry
                sequence = entry.end
            if sequence == start:
                raise damaged(self._path, 0, f"number {sequence} is not in any of its segments")

    def _entries_of_one_segment(
        self, sequence: int, window: int, pool: Pool
    ) -> Iterator[tuple[SegmentReader, int, Entry]]:
        segment = self._kept.holding(sequence)
        if segment is None:
            raise self._lost(sequence)
        try:
            file = self._files.open(segment.path)
        except FileNotFoundError:
            if segment.end <= self._kept.acknowledged:
                raise self._lost(sequence) from None
            raise damaged(segment.path, 0, "it is missing") from None
        except OSError as error:
            raise unreadable(segment.path, 0, error) from error
        try:
            reader = SegmentReader(file, segment, self._known, window, pool)
            for offset, entry in reader.headers(sequence):
                yield reader, offset, entry
        finally:
            file.close()
            if len(self._known) > _KNOWN:
                self._known.clear()
