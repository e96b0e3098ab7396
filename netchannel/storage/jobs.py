"""Messages of a sender's channel that go to disk and come back: blocking work, done in jobs outside the core.

A core asks for work (`Core.request`); its adapter then calls `JobOwner.begin`, runs the job on another
thread, and calls `Job.done` back on the loop. One job of an owner runs at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from netchannel.core.link import Job, JobOwner
from netchannel.core.sending.send_buffer import Cold, Record
from netchannel.core.sending.store import Store
from netchannel.errors import BufferFull, LogBroken, NetChannelError
from netchannel.log_texts import log
from netchannel.wire import frames
from netchannel.wire.pool import Pool

from .log import NewRecord, SegmentLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.timers import Timer
    from netchannel.wire.frames import Buffer

    from .segment import LogRecord

READ_BYTES = 1 << 22
"""Bytes read from the disk at a time, and kept ready ahead of the connection; a quarter of a small buffer."""
WINDOW_BYTES = 1 << 20
"""Bytes that are read by one call of the system."""
TOGETHER_BYTES = 1 << 19
"""Messages of so many bytes are one entry of a file, and go to the connection as one record when they are read."""
TRIM_S = 0.1
"""Acknowledgements are carried to the disk so often at most, unless something is written anyway."""
FULL_S = 1.0
"""A disk that was full is tried again after this time, or when something was acknowledged."""


def append(segment_log: SegmentLog, records: Sequence[Record], schema: bytes = b"") -> None:
    """Append ``records``, some large entries for all of them; where that raises, those before the log's head are in it.

    Each entry has its price, when it is written and when it is read.
    """
    done = 0
    while done < len(records):
        segment_log.append(_entries(islice(records, done, None), schema))
        done += appended(records[done:], segment_log)


def appended(records: Sequence[Record], segment_log: SegmentLog) -> int:
    """How many of ``records``, from the first on, the log has."""
    return bisect_right(records, segment_log.head, key=lambda record: record.end)


def _entries(records: Iterable[Record], schema: bytes) -> Iterator[NewRecord]:
    """Records as they go to disk; a frame is made when its turn comes, so that it is in the processor's cache."""
    group: list[Record] = []
    buffers: list[Buffer] = []
    size, kind = 0, (0, 0)
    for record in records:
        made = record.on_the_wire()
        own = frames.kind_and_flags(made[0])
        # They require the same features of their receiver, and none of them goes in parts.
        alike = own == kind and own[0] == frames.Kind.DATA and record.context is group[0].context
        if group and not alike:
            yield _entry(group, buffers, size, schema)
            group, buffers, size = [], [], 0
        kind = own
        group.append(record)
        buffers += made
        size += record.size
        if size >= TOGETHER_BYTES:
            yield _entry(group, buffers, size, schema)
            group, buffers, size, kind = [], [], 0, (0, 0)
    if group:
        yield _entry(group, buffers, size, schema)


def _entry(group: Sequence[Record], buffers: Sequence[Buffer], size: int, schema: bytes) -> NewRecord:
    return NewRecord(
        group[0].first, group[-1].end, buffers, size=size, schema=schema, context=group[0].context
    )


class BufferReader(JobOwner):
    """Reads what is to be sent next from the disk."""

    def __init__(self, channel: OutboundChannel) -> None:
        self.channel = channel
        self.busy = False
        self._putting_off = False
        self._pool = Pool()

    def put_off(self, error: NetChannelError, now: float) -> None:
        """There is no descriptor to read with: log it once, and try again later."""
        channel = self.channel
        if channel.terminal:
            return
        if not self._putting_off:
            self._putting_off = True
            log.warning("channel %s to %s: %s; trying again", channel.id, channel.to, error)
        channel.core.timers.at(now + FULL_S, self._try_again)

    def _try_again(self, now: float) -> None:
        self.busy = False
        if not self.channel.terminal:
            self.channel.core.request(self)

    def has_read(self) -> None:
        """An episode without descriptors is over."""
        self.busy = self._putting_off = False

    def begin(self) -> Job | None:
        """The next piece, if the connection will want it soon."""
        channel = self.channel
        if self.busy or channel.link is None:
            return None
        cold, ahead = channel.send_buffer.first_cold()
        size = min(READ_BYTES, channel.bounds.memory_bytes // 4)
        if cold is None:
            self._pool = Pool()  # no need to keep the memory
            return None
        if ahead > size:
            return None
        self.busy = True
        return _Read(self, cold, size, self._pool)


class _Read(Job):
    def __init__(self, reader: BufferReader, cold: Cold, size: int, pool: Pool) -> None:
        self._reader = reader
        self._size = size
        self._pool = pool
        self._cold = cold
        self._first, self._end = cold.first, cold.end
        self._records: list[Record] = []
        self._error: NetChannelError | None = None
        self._later: LogBroken | None = None

    def run(self) -> None:
        log = self._cold.log
        assert isinstance(log, SegmentLog)
        size = 0
        try:
            for found in log.read(self._first, window=WINDOW_BYTES, pool=self._pool):
                self._records.append(self._record(found))
                size += found.size
                if found.end >= self._end or size >= self._size:
                    return
        except LogBroken as error:
            if error.no_descriptors:
                self._later = error
            else:
                self._error = error
        except NetChannelError as error:
            self._error = error

    def _record(self, found: LogRecord) -> Record:
        """The record as it is sent: without frames that the receiver has, in front of the number that is asked for."""
        first, payload = found.first, found.payload
        if first < self._first:
            first, payload = frames.from_number(payload, first, self._first)
        largest = max(frames.largest_message(payload), len(found.context))
        return Record(first, found.end, found.size, largest, [payload], found.context, log=self._cold.log)

    def done(self, now: float) -> None:
        if self._later is not None and not self._records:
            self._reader.put_off(self._later, now)
            return
        self._reader.has_read()
        self._reader.channel.on_read(self._cold, self._first, self._records, self._error, now)


class BufferWriter(JobOwner, Store):
    """Writes a channel's messages to disk, and frees the space of what is acknowledged."""

    def __init__(self, channel: OutboundChannel) -> None:
        self.channel = channel
        self._reader = BufferReader(channel)
        self._busy = False
        self._leaving = False
        self._discarding = False
        self._full = False
        self._retry: Timer | None = None
        self._trim: Timer | None = None

    # -- for the channel

    @property
    def disk_bytes(self) -> int:
        return 0 if self.settled else self._disk_bytes()

    @abstractmethod
    def _disk_bytes(self) -> int:
        """Bytes on disk of all that is open."""

    def taken(self) -> None:
        self.request()

    def read_ahead(self) -> None:
        self.channel.core.request(self._reader)

    def request(self) -> None:
        if not self._busy and not self.settled:
            self.channel.core.request(self)

    def acknowledged(self, now: float) -> None:
        if self._trim is None and not self._leaving:
            self._trim = self.channel.core.timers.at(now + TRIM_S, self._trim_due)

    def _trim_due(self, now: float) -> None:
        self._trim = None
        self._full = False
        self.request()

    def leave(self, *, discard: bool) -> None:
        self._leaving, self._discarding = True, discard
        for timer in (self._retry, self._trim):
            if timer is not None:
                timer.cancel()
        self.request()

    def on_full(self, error: BufferFull, now: float) -> None:
        """There is no space on the disk: log it once, and try again later."""
        if self._retry is None:
            log.warning("channel %s to %s: %s; trying again", self.channel.id, self.channel.to, error)
        self._full = True
        self._retry = self.channel.core.timers.at(now + FULL_S, self._try_again)

    def _try_again(self, now: float) -> None:
        self._full = False
        self.request()

    def on_written(self) -> None:
        """The disk took something: an episode of fullness is over."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # -- for the adapter

    def begin(self) -> Job | None:
        """The next job."""
        if self._busy or self.settled:
            return None
        job = _Leave(self, self._leave_files) if self._leaving else self._work()
        self._busy = job is not None
        return job

    def ended(self, now: float) -> None:
        """The job is done; ``settled`` if it was the last."""
        self._busy = False
        self.request()
        self.channel.on_disk(now)

    @abstractmethod
    def _work(self) -> Job | None:
        """Return the work of writing or freeing that is due now."""

    @abstractmethod
    def _leave_files(self) -> None:
        """Close the files, and remove them if ``_discarding``; on another thread."""


class _Leave(Job):
    def __init__(self, writer: BufferWriter, leave: Callable[[], None]) -> None:
        self._writer = writer
        self._leave = leave

    def run(self) -> None:
        try:
            self._leave()
        except NetChannelError as error:
            log.warning("%s", error)

    def done(self, now: float) -> None:
        self._writer.settled = True
        self._writer.ended(now)
