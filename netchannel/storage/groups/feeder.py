"""The consumer's side of a staged channel: what is committed is read from its files into the channel's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from netchannel.core.link import Job, JobOwner
from netchannel.core.receiving.queue import Queue
from netchannel.errors import LogBroken, NetChannelError
from netchannel.storage.jobs import FULL_S

from .staged_records import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.core.timers import Timer
    from netchannel.policies import BufferPolicy
    from netchannel.storage.segment import LogRecord
    from netchannel.wire.frames import Buffer

    from .staging_store import StagingStore

READ_BYTES = 1 << 22
"""Bytes read at a time."""


class ReadQueue(Queue):
    """A queue that reports when its taken messages are read: when more is requested."""

    __slots__ = ("_on_read",)

    def __init__(self, bounds: BufferPolicy, on_read: Callable[[], None]) -> None:
        super().__init__(bounds)
        self._on_read = on_read

    def next_chunk(self) -> bool:
        found = super().next_chunk()
        if found:
            self._on_read()
        return found

    def release(self) -> bool:
        released = super().release()
        if released:
            self._on_read()
        return released


class Feeder(JobOwner):
    """Stands in the place of a data connection (`roles.Feed`); one job at a time reads ahead of the queue's marks.

    ``on_read`` is called when the consumer may have got further, ``on_fed`` when the channel has more of what is
    committed, ``on_left`` when it is over.
    """

    acknowledging = False

    def __init__(
        self,
        channel: InboundChannel,
        store: StagingStore,
        *,
        on_read: Callable[[], None],
        on_fed: Callable[[float], None],
        on_left: Callable[[float], None],
    ) -> None:
        self._channel = channel
        self._store = store
        self._on_read = on_read
        self._on_fed = on_fed
        self._on_left = on_left
        self.reading = True
        self.busy = False
        self._left = False
        self._later: Timer | None = None  # there is no descriptor to read with
        self._records: Generator[LogRecord, None, None] | None = None
        self._schema = b""
        self._context = b""
        channel.queue = ReadQueue(channel.buffer, on_read)

    # -- for the channel

    def send(self, *buffers: Buffer) -> None:
        """Do nothing: there is no sender."""

    def acknowledge(self) -> None:
        self._on_read()

    def acknowledge_later(self) -> None:
        self._on_read()

    def upquery(self, body: bytes) -> bool:
        """Report that there is no producer to ask: messages read here were committed."""
        return False

    def touched(self) -> None:
        self.request()

    def supersede(self) -> None:
        """Do nothing: no sender is let in that could take its place."""

    def leave(self, farewell: Buffer | None, now: float) -> None:
        self._left = True
        self._on_left(now)

    # -- reading

    @property
    def at_head(self) -> bool:
        """True if the channel has all committed messages."""
        return (self._channel.expected or 0) >= self._store.state.head

    def request(self) -> None:
        """There may be more to read, and room for it."""
        if self._due:
            self._channel.core.request(self)

    @property
    def _due(self) -> bool:
        return self.reading and not (self.busy or self._left or self.at_head or self._later)

    def begin(self) -> Job | None:
        if not self._due:
            return None
        self.busy = True
        if self._records is None:
            self._records = self._store.read(self._channel.expected or 0)
        return _Feed(self, self._records)

    def fed(self, job: _Feed, now: float) -> None:
        """Put what was read into the queue."""
        self.busy = False
        if job.ended:
            self._records = None
        if self._left:
            self._on_read()
            return
        error = job.error
        try:
            for piece in job.pieces:
                self._give(piece)
        except NetChannelError as refusal:
            error = refusal
        if isinstance(error, LogBroken) and error.no_descriptors:
            self._put_off(error, now)
        elif error is not None:
            self._channel.fail(error, now)
            return
        self._on_fed(now)

    def _put_off(self, error: LogBroken, now: float) -> None:
        channel = self._channel
        channel.core.complain("", now, "channel %s: %s; trying again", channel.id, error)
        self._later = channel.core.timers.at(now + FULL_S, self._try_again)

    def _try_again(self, now: float) -> None:
        self._later = None
        self.request()

    def _give(self, piece: _Piece) -> None:
        channel = self._channel
        if piece.schema is not self._schema:
            self._schema = piece.schema
            channel.learn(piece.schema)
        if piece.context is not self._context:
            self._context = piece.context
            channel.context = memoryview(piece.context) if piece.context else None
        known = (channel.expected or 0) - piece.first
        channel.take_in(piece.bodies[known:], piece.notes[known:], piece.timestamp)

    def close(self) -> None:
        """Give the file back that is being read; on another thread, with no job of it running."""
        if self._records is not None:
            self._records.close()


class _Piece(NamedTuple):
    """A record, as the queue takes it."""

    first: int
    bodies: list[memoryview]
    notes: list[bytes]
    timestamp: int
    schema: bytes
    context: bytes


class _Feed(Job):
    def __init__(self, feeder: Feeder, records: Iterator[LogRecord]) -> None:
        self._feeder = feeder
        self._records = records
        self.pieces: list[_Piece] = []
        self.ended = False
        self.error: NetChannelError | None = None

    def run(self) -> None:
        size = 0
        try:
            while size < READ_BYTES:
                record = next(self._records, None)
                if record is None:
                    self.ended = True
                    return
                bodies, notes = unpacked(record)
                self.pieces.append(
                    _Piece(record.first, bodies, notes, record.timestamp, record.schema, record.context)
                )
                size += record.size
        except NetChannelError as error:
            self.error, self.ended = error, True

    def done(self, now: float) -> None:
        self._feeder.fed(self, now)
