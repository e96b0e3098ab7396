"""A sender's messages until they are acknowledged: in memory, or on disk by the buffer policy."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from netchannel.wire.frames import WHOLE_LIMIT, Kind, alone, cut, signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from netchannel.wire.frames import Body, Buffer


class Record:
    """Messages ``first`` to ``end`` (excluded), of ``size`` bytes of bodies and notes.

    They are in ``buffers`` as they go on the wire, or else ``body`` is the only one: its frames are made when they are
    wanted, so that a checksum brings into the processor's cache what is written next. ``log`` is where it stands on
    disk too. A ``gap`` stands for messages that were dropped.
    """

    __slots__ = (
        "body",
        "buffers",
        "context",
        "end",
        "first",
        "gap",
        "largest",
        "log",
        "note",
        "size",
        "timestamp",
    )

    def __init__(  # noqa: PLR0917 - one per frame: keywords cost
        self,
        first: int,
        end: int,
        size: int,
        largest: int,
        buffers: Sequence[Buffer],
        context: bytes,
        body: Body = b"",
        note: bytes = b"",
        timestamp: int = 0,
        *,
        log: object | None = None,
        gap: bool = False,
    ) -> None:
        self.first = first
        self.end = end
        self.size = size
        self.largest = largest
        self.buffers = buffers
        self.context = context
        self.log = log
        self.gap = gap
        self.body = body
        self.note = note
        self.timestamp = timestamp

    def whole(self, *, summed: bool = True) -> Sequence[Buffer]:
        """Its frame; nothing if it goes in parts. Where it need not be ``summed``, it may have no checksum."""
        if self.buffers:
            return self.buffers
        if self.largest > WHOLE_LIMIT and len(self.body) > WHOLE_LIMIT:
            return ()
        return alone(self.body, self.note, self.first, self.timestamp, summed=summed)

    def parts(self, *, summed: bool = True) -> Iterator[Sequence[Buffer]]:
        """The frames of a message that goes in parts."""
        return cut(Kind.PART, self.body, self.note, self.first, self.timestamp, summed=summed)

    def on_the_wire(self) -> Sequence[Buffer]:
        """All frames of the message, for the disk."""
        return self.whole() or list(chain.from_iterable(self.parts()))


class Cold:
    """Messages ``first`` to ``end`` (excluded) that are on disk only."""

    __slots__ = ("end", "first", "log")

    def __init__(self, first: int, end: int, log: object) -> None:
        self.first = first
        self.end = end
        self.log = log


Entry = Record | Cold


class SendBuffer:
    """Entries in the order of their numbers: received by the peer, on their way to it, and yet to be sent.

    ``memory`` is the bytes of the records among them, ``gaps`` the numbers of dropped messages.
    """

    def __init__(self) -> None:
        self.received: deque[Entry] = deque()
        self.in_flight: deque[Record] = deque()
        self.unsent: deque[Entry] = deque()
        self.memory = 0
        self.gaps = 0
        self.has_cold = False  # among what is yet to be sent, or a little while ago

    def largest(self) -> int:
        """The largest message in memory, in bytes."""
        entries = (*self.received, *self.in_flight, *self.unsent)
        return max([entry.largest for entry in entries if isinstance(entry, Record)], default=0)

    def add(self, record: Record) -> None:
        """Keep ``record``, to be sent after all others."""
        self.unsent.append(record)
        self.memory += record.size

    def add_cold(self, first: int, end: int, log: object) -> None:
        """Keep messages that are on disk, to be sent after all others."""
        _append_cold(self.unsent, first, end, log)
        self.has_cold = True

    def next_record(self) -> Record | None:
        """Return the next record to send, which is in flight then; None if there is none in memory."""
        record = self.unsent[0] if self.unsent else None
        if type(record) is not Record:
            return None
        self.unsent.popleft()
        self.in_flight.append(record)
        return record

    def on_received(self, upto: int) -> None:
        """The peer has everything below ``upto``: what is on disk too need not be in memory."""
        waiting = self.in_flight
        while waiting and waiting[0].end <= upto:
            self._set_aside(waiting.popleft())

    def _set_aside(self, entry: Entry) -> None:
        if entry.log is None:
            self.received.append(entry)
            return
        if isinstance(entry, Record):
            self.memory -= entry.size
        _append_cold(self.received, entry.first, entry.end, entry.log)

    def on_acknowledged(self, upto: int) -> None:
        """Let go of everything below ``upto``, which need not be kept."""
        for entries in (self.received, self.in_flight, self.unsent):
            while entries and entries[0].end <= upto:
                entry = entries.popleft()
                if isinstance(entry, Record):
                    self.memory -= entry.size
                    if entry.gap:
                        self.gaps -= entry.end - entry.first
            if entries:
                if isinstance(first := entries[0], Cold):
                    first.first = max(first.first, upto)
                return

    def rewind(self, expected: int) -> None:
        """Begin again with number ``expected``, with nothing in flight; what is below stays kept."""
        while self.in_flight and self.in_flight[-1].end > expected:
            self._take_back(self.in_flight.pop())
        while self.in_flight:
            self._set_aside(self.in_flight.popleft())
        while self.received and self.received[-1].end > expected:
            self._send_again(self.received.pop(), expected)
        while self.unsent and self.unsent[0].end <= expected:
            self._set_aside(self.unsent.popleft())
        if self.unsent and isinstance(first := self.unsent[0], Cold) and first.first < expected:
            _append_cold(self.received, first.first, expected, first.log)
            first.first = expected

    def _take_back(self, record: Record) -> None:
        """Send ``record`` once more: from the disk if it is there, as that may take any time."""
        if record.log is None:
            self.unsent.appendleft(record)
            return
        self.memory -= record.size
        after = self.unsent[0] if self.unsent else None
        if isinstance(after, Cold) and after.log is record.log and after.first <= record.end:
            after.first = record.first
        else:
            self.unsent.appendleft(Cold(record.first, record.end, record.log))
        self.has_cold = True

    def _send_again(self, entry: Entry, expected: int) -> None:
        if isinstance(entry, Record):
            self.unsent.appendleft(entry)
            return
        first = max(entry.first, expected)
        if entry.first < first:
            self.received.append(Cold(entry.first, first, entry.log))
        after = self.unsent[0] if self.unsent else None
        if isinstance(after, Cold) and after.log is entry.log and after.first <= entry.end:
            after.first = first
        else:
            self.unsent.appendleft(Cold(first, entry.end, entry.log))
        self.has_cold = True

    def first_cold(self) -> tuple[Cold | None, int]:
        """The first messages to read from disk next, and the bytes in memory that are sent before them."""
        ahead = 0
        for entry in self.unsent:
            if isinstance(entry, Cold):
                return entry, ahead
            ahead += entry.size
        self.has_cold = False
        return None, ahead

    def warm(self, cold: Cold, first: int, records: Sequence[Record]) -> None:
        """``records`` were read for ``cold``, from number ``first`` on.

        They are passed over if it is not to be read next any more, or not from there: then it is read again.
        """
        current, _ = self.first_cold()
        if current is not cold or cold.first != first:
            return
        index = self.unsent.index(cold)
        for record in records:
            if record.first >= cold.end:
                break  # what follows is in memory already
            self.unsent.insert(index, record)
            self.memory += record.size
            cold.first = record.end
            index += 1
        if cold.first >= cold.end:
            del self.unsent[index]

    def in_memory_only(self) -> list[Record]:
        """The last records, which are neither sent nor on disk, in their order."""
        records: list[Record] = []
        for entry in reversed(self.unsent):
            if isinstance(entry, Cold) or entry.log is not None:
                break
            records.append(entry)
        records.reverse()
        return records

    def cool(self, first: int, end: int, log: object) -> None:
        """Messages ``first`` to ``end`` are on disk now: what of them is yet to be sent leaves the memory."""
        for record in self.in_flight:
            if first <= record.first < end:
                record.log = log
        unsent, self.unsent = self.unsent, deque()
        for entry in unsent:
            if isinstance(entry, Record) and entry.log is None and first <= entry.first < end:
                self.memory -= entry.size
                self.add_cold(entry.first, entry.end, log)
            else:
                self.unsent.append(entry)

    def drop_oldest(self, sent: int) -> int:
        """Put a gap in the place of the oldest record that begins at ``sent`` or later; how many messages it had."""
        for index, record in enumerate(self.unsent):
            if isinstance(record, Record) and record.first >= sent and not record.gap:
                self.unsent[index] = _gap(record.first, record.end, record.context)
                self.memory -= record.size
                self.gaps += record.end - record.first
                self._join_gaps(index, sent)
                return record.end - record.first
        return 0

    def _join_gaps(self, index: int, sent: int) -> None:
        before, gap = self.unsent[index - 1] if index else None, self.unsent[index]
        if isinstance(before, Record) and before.gap and before.first >= sent:
            self.unsent[index] = _gap(before.first, gap.end, before.context)
            del self.unsent[index - 1]

    def clear(self) -> None:
        """Keep nothing."""
        for entries in (self.received, self.in_flight, self.unsent):
            entries.clear()
        self.memory = self.gaps = 0
        self.has_cold = False


def _gap(first: int, end: int, context: bytes) -> Record:
    """Return the frame that is sent in place of messages ``first`` to ``end`` (excluded)."""
    frame = signal(Kind.GAP, sequence=first, count=end - first)
    return Record(first, end, 0, 0, [frame], context, gap=True)


def _append_cold(entries: deque[Entry], first: int, end: int, log: object) -> None:
    last = entries[-1] if entries else None
    if isinstance(last, Cold) and last.log is log and first <= last.end:
        last.end = end
    else:
        entries.append(Cold(first, end, log))
