"""Reading ranges of a retained stream: without gap or double, over as many connections as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.backoff import Backoff
from netchannel.core.client_core import ERRORS
from netchannel.core.control_connection import FOR_READING, greeting
from netchannel.core.link import Closing, Link
from netchannel.core.receiving.queue import Chunk, Queue
from netchannel.errors import ChannelClosed, HandshakeError, NetChannelError, ProtocolError
from netchannel.log_texts import log, printable
from netchannel.policies import BufferPolicy
from netchannel.wire import messages
from netchannel.wire.frame_parser import FrameParser
from netchannel.wire.frames import UNSUMMED, Frame, Kind, signal, unpack

from .read_server import REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.client_core import ClientChannel, ClientControl, PendingQuestion
    from netchannel.wire.codec import Decoder

BOUNDS = BufferPolicy(max_bytes=8 << 20)
"""Bound on received messages that are not taken: above it the connection is not read."""
IDLE_LINKS = 4
"""Connections of a reader that are kept for the next range."""


class RangeRead:
    """Messages ``first`` to ``until`` (excluded), as they come; ``on_change`` is called when more has.

    Owned by a `ReadClient`. ``error`` is what ended it early.
    """

    def __init__(self, reader: ReadClient, stream: str, first: int, until: int) -> None:
        self.reader = reader
        self.stream = stream
        self.next = first
        self.until = until
        self.on_change: Callable[[], None] = lambda: None
        self.queue = Queue(BOUNDS)
        self.error: NetChannelError | None = None
        self.complete = False
        self.progressed = False  # since the last loss
        self.backoff = Backoff(reader.channel.core)
        self.link: ReadClientData | None = None
        self.question: PendingQuestion | None = None

    @property
    def over(self) -> bool:
        """True if nothing more comes."""
        return self.complete or self.error is not None

    def take(self) -> list[Chunk]:
        """Return everything that has come; nothing if there is none now. Raises what ended it, once all is taken."""
        chunks = []
        queue = self.queue
        while queue.next_chunk():
            chunks.append(queue.chunk)
        queue.release()
        if chunks:
            if self.link is not None:
                self.link.admit(full=False)
        elif self.error is not None:
            raise type(self.error)(*self.error.args)
        return chunks

    def deliver(self, frame: Frame, context: memoryview | None) -> None:
        """Messages came. Raises ProtocolError for any but the next ones."""
        if frame.kind == Kind.PART:
            bodies, notes = [frame.payload], [frame.note] if frame.note else []
        else:
            bodies, notes, _ = unpack(frame)
        end = frame.sequence + len(bodies)
        if frame.sequence != self.next or not self.next < end <= self.until:
            raise ProtocolError(
                f"expected messages from {self.next} to {self.until}, got {frame.sequence} to {end}: only the "
                f"messages before number {self.next} are complete"
            )
        self.reader.decoder_of(self.stream).check(bodies, context, self.reader.message_limit)
        self.queue.add(Chunk(bodies, notes, end, frame.timestamp, context))
        self.next = end
        self.progressed = True
        self.on_change()

    def finished(self, until: int) -> None:
        """The end of the range came. Raises ProtocolError if it is not the end."""
        if not until == self.next == self.until:
            raise ProtocolError(
                f"a range that must end at number {self.until} ended at number {until}, after the messages "
                f"below number {self.next}"
            )
        self.complete, self.link = True, None
        self.reader.channel.peer.progressed()
        self.on_change()

    def fail(self, error: NetChannelError) -> None:
        """End it early with ``error``: nothing more comes."""
        if not self.over:
            self.error = error
            self.on_change()


class ReadClient:
    """All reading of one channel: connections that are used again, and readings that wait for one."""

    def __init__(
        self, channel: ClientChannel, decoder_of: Callable[[str], Decoder], message_limit: int
    ) -> None:
        self.channel = channel
        self.decoder_of = decoder_of
        self.message_limit = message_limit
        self._readings: dict[RangeRead, None] = {}
        self._idle: list[ReadClientData] = []
        self._links: dict[ReadClientData, None] = {}

    def read(self, stream: str, first: int, until: int, now: float) -> RangeRead:
        """Begin to read a range."""
        self.channel.check_live()
        reading = RangeRead(self, stream, first, until)
        self._readings[reading] = None
        self._connect(reading, now)
        return reading

    def cancel(self, reading: RangeRead, now: float) -> None:
        """Stop a reading of which nothing more is wanted; what is on its way is dropped with its connection."""
        self._readings.pop(reading, None)
        reading.queue.clear()
        link, reading.link = reading.link, None
        if link is not None:
            link.drop()
        if reading.question is not None:
            self.channel.forget(reading.question)
        reading.fail(ChannelClosed(f"this side stopped reading channel {self.channel.id!r}"))

    def _connect(self, reading: RangeRead, now: float) -> None:
        for link in self._idle:
            if link.stream == reading.stream:
                self._idle.remove(link)
                link.begin(reading)
                return

        def answered(answer: messages.Reading, now: float) -> None:
            reading.question = None
            self._dial(reading, answer.token)

        def failed(error: NetChannelError, now: float) -> None:
            reading.question = None
            self._failed(reading, error)

        reading.question = self.channel.ask(messages.Read, answered, failed, now, stream=reading.stream)

    def _dial(self, reading: RangeRead, token: bytes) -> None:
        peer = self.channel.peer
        assert peer.control is not None
        link = ReadClientData(self, peer.control, peer.address, reading.stream, token)
        self._links[link] = None
        link.begin(reading)
        self.channel.core.dial(link)

    def _failed(self, reading: RangeRead, error: NetChannelError) -> None:
        self._readings.pop(reading, None)
        reading.fail(error)

    def done(self, link: ReadClientData, reading: RangeRead) -> None:
        """A range has come to its end on ``link``."""
        self._readings.pop(reading, None)
        if len(self._idle) < IDLE_LINKS and link.closing is Closing.OPEN:
            self._idle.append(link)
        else:
            link.drop()

    def refused(self, reading: RangeRead, code: str, text: str) -> None:
        """The retaining end will not give the range, for good or for now."""
        kind = ERRORS.get(code)
        if kind is not None:
            reading.link = None
            self._failed(reading, kind(f"channel {self.channel.id!r}: {text}"))

    def broken(self, reading: RangeRead, error: ProtocolError) -> None:
        """Fail a reading to which something came that it had not asked for."""
        reading.link = None
        self._failed(reading, error)

    def lost(self, link: ReadClientData, reading: RangeRead | None, reason: str, now: float) -> None:
        """A connection is gone: what it was to bring is asked for again, where it stopped."""
        self._links.pop(link, None)
        if link in self._idle:
            self._idle.remove(link)
        if reading is None or reading.over or self.channel.error is not None:
            return
        reading.link = None
        if reading.progressed:
            reading.progressed = False
            reading.backoff.reset()
            self.channel.peer.progressed()
            self._again(reading, now)
            return
        log.debug("channel %s: reading at number %d: %s", self.channel.id, reading.next, printable(reason))
        wait = reading.backoff.next(now)
        self.channel.core.timers.at(now + wait, lambda now: self._again(reading, now))

    def _again(self, reading: RangeRead, now: float) -> None:
        if reading in self._readings and reading.link is None and self.channel.error is None:
            self._connect(reading, now)

    def control_lost(self) -> None:
        """The connection on which it is asked is gone, and with it those on which is read."""
        for link in list(self._links):
            link.abort("the connection of the request is gone")

    def close(self, error: NetChannelError) -> None:
        """End all readings and connections."""
        for reading in list(self._readings):
            self._failed(reading, error)
        for link in list(self._links):
            link.drop()


class ReadClientData(Link):
    """The client's end of a connection on which ranges are read, one after the other."""

    def __init__(
        self, reader: ReadClient, session: ClientControl, remote: str, stream: str, token: bytes
    ) -> None:
        core = reader.channel.core
        super().__init__(core, remote)
        self.stream = stream
        self._reader = reader
        self._session = session
        self._token = token
        self._shown = b""  # of the connection's ends
        self._parser = FrameParser(core.slab, core.pool, reader.message_limit)
        self._attached = False
        self._reading: RangeRead | None = None
        self._context: memoryview | None = None

    def begin(self, reading: RangeRead) -> None:
        """Ask for a range, once the connection is attached."""
        self._reading, reading.link = reading, self
        if self._attached:
            self._ask(reading)

    def _ask(self, reading: RangeRead) -> None:
        self.send(signal(Kind.REQUEST, sequence=reading.next, payload=REQUEST.pack(reading.until)))

    def connected(self, now: float) -> None:
        self.arm(now + self.core.timing.handshake_s, self._expired)
        self._shown = self.ends if messages.ENDS in self._session.peer_features else b""
        self.send(greeting(FOR_READING), signal(Kind.ATTACH, payload=self._token + self._shown))

    def _expired(self, now: float) -> None:
        self.abort(f"not accepted within {self.core.timing.handshake_s:.1f} s")

    def get_buffer(self, hint: int) -> memoryview:
        return self._parser.get_buffer()

    def _received(self, n: int, now: float) -> None:
        self._session.heard(now)
        for frame in self._parser.received(n):
            if self.closing is not Closing.OPEN:
                return
            reading = self._reading
            if reading is None:
                if frame.kind != Kind.REFUSED:  # of another stream, e.g.: the next range finds out
                    raise ProtocolError(
                        f"a frame {Kind(frame.kind).name} arrived, although no range was requested"
                    )
                self.abort(_text(frame))
                return
            self._take(reading, frame)
        if (reading := self._reading) is not None:
            self.admit(full=reading.queue.full)

    def _take(self, reading: RangeRead, frame: Frame) -> None:
        match frame.kind:
            case Kind.DATA | Kind.PART if self._attached:
                try:
                    reading.deliver(frame, self._context)
                except ProtocolError as error:
                    self._misled(reading, error)
                    raise
            case Kind.SCHEMA | Kind.CONTEXT if self._attached:
                self._learn(reading, frame.kind, bytes(frame.payload))
            case Kind.END if self._attached:
                try:
                    reading.finished(frame.sequence)
                except ProtocolError as error:
                    self._misled(reading, error)
                    raise
                self._reading = None
                self.admit(full=False)  # nothing else would, once all of the range is taken
                self._reader.done(self, reading)
            case Kind.ATTACHED if not self._attached:
                self.disarm()
                self._attached = True
                self._parser.summed = not (self._shown and frame.flags & UNSUMMED)
                self._ask(reading)
            case Kind.REFUSED:
                code, _, text = _text(frame).partition(" ")
                self._reader.refused(reading, code, text)
                self.abort(f"the range was refused: {text}")
            case kind:
                raise ProtocolError(f"{self.remote} sent a frame {Kind(kind).name} at the wrong time")

    def _misled(self, reading: RangeRead, error: ProtocolError) -> None:
        """Fail on messages other than those that were due: trying again would hide that a peer is wrong."""
        self._reading = None
        self._reader.broken(reading, ProtocolError(f"channel {self._reader.channel.id!r}: {error}"))

    def _learn(self, reading: RangeRead, kind: int, blob: bytes) -> None:
        decoder = self._reader.decoder_of(self.stream)
        if kind == Kind.CONTEXT:
            decoder.check_context(blob, self._reader.message_limit)
            self._context = memoryview(blob)
            return
        try:
            decoder.learn(blob)
        except ProtocolError:
            raise
        except NetChannelError as error:
            self._reading = reading.link = None
            reading.fail(error)
            self.abort(str(error))

    def admit(self, *, full: bool) -> None:
        """Read only while what has come is taken."""
        if self.reading is full:
            self.reading = not full
            self.core.touch(self)

    def drop(self) -> None:
        """Drop the connection, as its messages are no longer wanted."""
        self._reading = None
        self.abort()

    def refused(self, error: HandshakeError, now: float) -> None:
        if (reading := self._reading) is not None:
            self._reading = None
            self._reader.refused(reading, "policy", str(error))

    def _lost(self, reason: str, now: float) -> None:
        reading, self._reading = self._reading, None
        self._reader.lost(self, reading, reason, now)


def _text(frame: Frame) -> str:
    return bytes(frame.payload[:1000]).decode(errors="replace")
