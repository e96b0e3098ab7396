"""The places of a retained stream's records, and the rows and bytes up to each, so that ranges are found."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from netchannel.core.sending.send_buffer import Record
from netchannel.values import Located
from netchannel.wire.frames import pack
from netchannel.wire.rows import rows_of, unpacked

if TYPE_CHECKING:
    from collections.abc import Generator

_COMPACT_FROM = 1024
"""Records that are gone are taken out of the arrays when there are so many of them, and they are half of all."""


class Index:
    """Records without gaps, from number ``first`` on, before which there were ``rows`` rows and ``size`` bytes."""

    def __init__(self, first: int = 0, rows: int = 0, size: int = 0) -> None:
        # Each place is the end of a record, and what is below it; before the first record is where it begins.
        self._ends = array("Q", [first])
        self._rows = array("Q", [rows])
        self._sizes = array("Q", [size])
        # Senders' clocks may go back. For each place it has the latest time below it; and for the records
        # that no earlier time follows, their ends and times: both rise, so that either can be searched.
        self._latest = array("Q", [0])
        self._last_ends = array("Q")
        self._last_times = array("Q")
        self._gone = 0

    @property
    def oldest(self) -> int:
        """The number at which the oldest record begins."""
        return self._ends[self._gone]

    @property
    def head(self) -> int:
        """The number at which the newest record ends."""
        return self._ends[-1]

    @property
    def rows(self) -> int:
        """Rows of all messages below `head`, from number 0 of the stream on."""
        return self._rows[-1]

    @property
    def size(self) -> int:
        """Bytes of all messages below `head`, likewise."""
        return self._sizes[-1]

    @property
    def kept(self) -> int:
        """Bytes of the messages in the records."""
        return self._sizes[-1] - self._sizes[self._gone]

    def add(self, end: int, rows: int, size: int, timestamp: int) -> None:
        """A record came, up to number ``end``, whose messages were sent at ``timestamp``."""
        self._latest.append(max(self._latest[-1], timestamp))
        while self._last_times and self._last_times[-1] >= timestamp:
            self._last_times.pop()
            self._last_ends.pop()
        self._last_times.append(timestamp)
        self._last_ends.append(end)
        self._rows.append(self._rows[-1] + rows)
        self._sizes.append(self._sizes[-1] + size)
        self._ends.append(end)

    def below(self, sequence: int) -> tuple[int, int, int]:
        """The boundary at or below ``sequence``, and the rows and bytes below that."""
        place = self._place(sequence)
        return self._ends[place], self._rows[place], self._sizes[place]

    def span(self, sequence: int) -> tuple[int, int]:
        """The record that holds ``sequence``: its first number, and the one after it."""
        place = self._place(sequence)
        return self._ends[place], self._ends[place + 1]

    def _place(self, sequence: int) -> int:
        return bisect_right(self._ends, sequence, lo=self._gone) - 1

    def furthest(self, rows: int | None, size: int | None) -> int:
        """The last boundary that has at most ``rows`` rows and ``size`` bytes below it."""
        place = len(self._ends)
        for limit, sums in ((rows, self._rows), (size, self._sizes)):
            if limit is not None:
                place = min(place, bisect_right(sums, limit, lo=self._gone))
        return self._ends[max(place - 1, self._gone)]

    def moment(self, at: int) -> tuple[int, int]:
        """The first message sent at a time or later, and the number after the last one sent earlier.

        The first number may be too low, where that message is gone; then it is the oldest.
        """
        place = bisect_left(self._latest, at, lo=self._gone + 1)
        since = self._ends[place - 1]
        earlier = bisect_left(self._last_times, at)
        before = self._last_ends[earlier - 1] if earlier else 0
        return since, max(before, self.oldest)

    def trim(self, upto: int) -> int:
        """Forget the records that end at or below ``upto``; returns how many are kept: it may begin higher."""
        self._gone = self._place(upto)
        if self._gone > _COMPACT_FROM and self._gone * 2 > len(self._ends):
            for numbers in (self._ends, self._rows, self._sizes, self._latest):
                del numbers[: self._gone]
            self._gone = 0
            over = bisect_right(self._last_ends, self.oldest)
            del self._last_ends[:over], self._last_times[:over]
        return self.oldest


def locate(
    index: Index, codec: str, first: int, max_rows: int | None, max_bytes: int | None
) -> Generator[int, Record, Located]:
    """Find as many messages from ``first`` on as fit, at least one if there is one.

    Yields the first numbers of records that it must look into: two at most, as sums are known between records.
    """
    boundary, rows_before, size_before = index.below(first)
    if boundary < first:
        messages = yield from _messages(index, codec, boundary)
        rows_before += sum(rows for rows, _ in messages[: first - boundary])
        size_before += sum(size for _, size in messages[: first - boundary])
    most_rows = None if max_rows is None else rows_before + max_rows
    most_bytes = None if max_bytes is None else size_before + max_bytes
    until, rows_below, size_below = index.below(max(first, index.furthest(most_rows, most_bytes)))
    begins = until
    if until <= first:
        until, rows_below, size_below = first, rows_before, size_before
    if until < index.head:
        messages = yield from _messages(index, codec, begins)
        for rows, size in messages[until - begins :]:
            few = most_rows is None or rows_below + rows <= most_rows
            if until > first and not (few and (most_bytes is None or size_below + size <= most_bytes)):
                break
            until, rows_below, size_below = until + 1, rows_below + rows, size_below + size
    return Located(until, rows_below - rows_before, size_below - size_before)


def _messages(index: Index, codec: str, start: int) -> Generator[int, Record, list[tuple[int, int]]]:
    """The rows and bytes of each message of the record that begins at ``start``."""
    _, end = index.span(start)
    if end == start + 1:
        (_, rows, size), (_, rows_behind, size_behind) = index.below(start), index.below(end)
        return [(rows_behind - rows, size_behind - size)]
    record = yield start
    bodies, notes, _ = unpacked(record.buffers[0])
    sizes = list(map(len, bodies))
    if notes:
        sizes = [size + len(note) for size, note in zip(sizes, notes, strict=True)]
    return [(rows_of(codec, body), size) for body, size in zip(bodies, sizes, strict=True)]


def part_of(record: Record, first: int, until: int) -> Record:
    """The messages ``first`` to ``until`` (excluded) of a record that holds more."""
    bodies, notes, timestamp = unpacked(record.buffers[0])
    start, stop = first - record.first, until - record.first
    kept = {place - start: notes[place] for place in range(start, stop) if notes and notes[place]}
    frame = pack(bodies[start:stop], kept, first, timestamp)
    size = sum(map(len, bodies[start:stop])) + sum(map(len, kept.values()))
    return Record(first, until, size, record.largest, frame, record.context)
