"""The position of a stream between fragments in what it was made from: the note of each of its messages.

With a message without rows goes how far event time has come, where that is known.

A fragment that reads a file counts the file's rows; one that reads a channel passes on the numbers of what it reads, if
it is exact (`nebuli.exactness`), and otherwise counts the rows that it sends. So a restarted fragment knows, from the
last note that its reader has, which input it has done.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from nebuli.connectors.endpoints import Signal, Skipping, Source
from nebuli.connectors.errors import FragmentError
from nebuli.dataflow import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

__all__ = ["END", "CountedSource", "Lineage", "Span", "as_note", "of_note"]

END = (1 << 64) - 1
"""The position after all rows. A message with it has no rows: it shows that the stream is complete, which the end alone
would not show to a reader that needs to know how much of it is done."""

_SPAN = struct.Struct("<QQ")
_SPAN_AND_PROGRESS = struct.Struct("<QQq?")  # the watermark in microseconds, and whether its stream is idle


class Span(NamedTuple):
    """The part of the origin that a message is made from: from where the message before it ended up to ``end``."""

    begin: int
    end: int


def as_note(span: Span, progress: Progress | None = None) -> bytes:
    """Return the note with a message's position, and how far event time has come."""
    if progress is None:
        return _SPAN.pack(*span)
    return _SPAN_AND_PROGRESS.pack(*span, progress.watermark, progress.idle)


def of_note(note: bytes) -> tuple[Span, Progress | None]:
    """Return the contents of a note; ``FragmentError`` if it is malformed."""
    if len(note) == _SPAN.size:
        return Span(*_SPAN.unpack(note)), None
    if len(note) != _SPAN_AND_PROGRESS.size:
        raise FragmentError(
            f"a note has {len(note)} bytes, but a worker's note has {_SPAN.size} or "
            f"{_SPAN_AND_PROGRESS.size}: another program, or another version, has written this note"
        )
    begin, end, watermark, idle = _SPAN_AND_PROGRESS.unpack(note)
    return Span(begin, end), Progress(watermark, idle)


class Lineage:
    """The part of its input that an exact fragment has done. Its source and its sink share it; its thread writes it."""

    def __init__(self) -> None:
        self.start = 0
        """The position below which everything has been done by a predecessor, and its reader has it."""
        self.position = 0
        """The end of the input that the fragment works on."""
        self.done = 0
        """The position below which everything is done, and what was made from it has been sent."""
        self.advanced: Callable[[], None] = _nobody
        """Called when there is more that is done; set by the sink."""
        self.acknowledge: Callable[[int], None] = _nothing
        """Called, on the loop, with the position below which everything that was made is acknowledged; set by the
        source, if it is waited for there."""

    def advance(self, *, also: bool = False) -> None:
        """Note that what the fragment worked on is done; ``also`` if that took no rows."""
        if self.position > self.done or also:
            self.done = max(self.done, self.position)
            self.advanced()


def _nobody() -> None:
    """Do nothing: it is not waited for."""


def _nothing(position: int) -> None:
    """A file is not acknowledged."""


class CountedSource(Source):
    """Gives what ``source`` gives from the row ``lineage.start`` on; rows must be the same each time they are read."""

    def __init__(self, source: Source, lineage: Lineage, wake: Callable[[], None]) -> None:
        self._source = source
        self._lineage = lineage
        self._wake = wake
        self._given = 0
        self._placed = False

    def open(self) -> None:
        """Open the file."""
        self._source.open()

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """The next rows that are not done."""
        lineage = self._lineage
        lineage.advance()
        if lineage.start == END:
            return Signal.END
        if not self._placed:
            self._placed = True
            if lineage.start and isinstance(self._source, Skipping):
                self._source.skip(lineage.start)
                self._given = lineage.start
        batch = self._source.poll()
        if isinstance(batch, Signal | Progress):
            return batch
        first, self._given = self._given, self._given + batch.num_rows
        if self._given <= lineage.start:
            self._wake()  # the fragment looks whether it is to stop, and comes again
            return Signal.LATER
        lineage.position = self._given
        return batch.slice(max(0, lineage.start - first))

    def close(self, reason: str) -> None:
        """Close the file."""
        self._source.close(reason)

    def interrupt(self) -> None:
        """The file may be one that waits."""
        self._source.interrupt()
