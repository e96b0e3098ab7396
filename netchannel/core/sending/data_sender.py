"""The sender's end of a data connection."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from netchannel.core.control_connection import FOR_DATA, greeting
from netchannel.core.link import Closing
from netchannel.core.states import SenderEvent
from netchannel.core.upqueries import Upqueries
from netchannel.errors import HandshakeError, ProtocolError
from netchannel.log_texts import printable
from netchannel.wire.frame_parser import FrameParser
from netchannel.wire.frames import (
    FRAME_LIMIT,
    HEAD,
    SHARED_FROM,
    UNSUMMED,
    UPQUERY_LIMIT,
    Buffer,
    Frame,
    Kind,
    blob,
    reference,
    signal,
)
from netchannel.wire.messages import ENDS

from .features import ALL, describe_missing, missing_feature
from .lender import weight
from .outbound import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from .lender import Lender
    from .outbound import OutboundChannel
    from .send_buffer import Record


WRITE_LIMIT = 1 << 20
"""Bytes handed to the transport at a time, so that it can pause the writer in between."""
AHEAD_LIMIT = 1 << 23
"""Bytes in shared memory that the receiver has not confirmed: above them the sender waits, as for a full
socket."""


class Session(Protocol):
    """The control connection that a data connection belongs to; ``peer_features`` is what its other end can do.

    ``lender`` has the memory that both have, if they have any.
    """

    peer: str
    lender: Lender | None
    peer_features: frozenset[str]

    def heard(self, now: float) -> None:
        """A byte came from the peer."""

    def refused_for_good(self, channel: OutboundChannel, code: str, text: str, now: float) -> bool:
        """True if asking again cannot help; then the channel is given up."""

    def data_lost(self, channel: OutboundChannel, now: float) -> None:
        """The data connection failed."""


class SenderData(Connection):
    """Presents the token, then carries the channel's frames one way and acknowledgements the other."""

    def __init__(self, channel: OutboundChannel, session: Session, remote: str, token: bytes) -> None:
        super().__init__(channel.core, remote)
        self.channel: OutboundChannel | None = channel
        self.session = session
        self._schema_sent = False
        self._context_sent = b""
        self._parts: Iterator[Sequence[Buffer]] | None = None  # of a message that was begun
        self._takes_all = session.peer_features >= ALL
        self._lacking = False  # and the channel is being given up for what the receiver cannot take
        self.end_sent = False
        self._token = token
        self._loan = None if session.lender is None else session.lender.loan(token)
        self._ahead: deque[tuple[int, int]] = deque()  # of each loan: the number after it, its size
        self._ahead_size = 0
        self._shown = b""  # of the connection's ends
        self._summed = True
        self._parser = FrameParser(channel.core.slab, channel.core.pool, message_limit=0)

    def connected(self, now: float) -> None:
        """Ask to be attached."""
        if self.channel is None:
            self.abort()
            return
        self.arm(now + self.core.timing.handshake_s, self._refused_silently)
        channel = self.channel
        self._shown = self.ends if ENDS in self.session.peer_features else b""
        presented = self._token + (HEAD.pack(channel.offered) if channel.placed else b"") + self._shown
        self.send(greeting(FOR_DATA), signal(Kind.ATTACH, sequence=channel.acknowledged, payload=presented))

    def get_buffer(self, hint: int) -> memoryview:
        return self._parser.get_buffer()

    def _received(self, n: int, now: float) -> None:
        self.session.heard(now)
        for frame in self._parser.received(n):
            if self.channel is None or self.closing is not Closing.OPEN:
                return
            if frame.kind == Kind.RELEASED:
                self._returned(frame)
            elif frame.kind == Kind.UPQUERY and self.attached:
                self._asked(self.channel, bytes(frame.payload))
            else:
                self._take(self.channel, frame, now)

    def _take(self, channel: OutboundChannel, frame: Frame, now: float) -> None:
        attached = self.attached
        match frame.kind:
            case Kind.ACK if attached:
                channel.on_ack(frame.sequence, now)
                self._caught_up(channel.received)
            case Kind.RECEIPT if attached:
                channel.on_receipt(frame.sequence)
                self._caught_up(channel.received)
            case Kind.STARVED if attached:
                channel.on_starved()
            case Kind.ATTACHED if not attached:
                self.disarm()
                self.attached = True
                self._summed = not (self._shown and frame.flags & UNSUMMED)
                channel.attached(self, frame.sequence, bytes(frame.payload), now)
            case Kind.FINISHED:
                if attached and not self.end_sent:
                    raise ProtocolError(
                        f"{self.remote} has finished channel {channel.id!r}, but the end of its stream was not sent"
                    )
                count = None if attached else frame.sequence
                channel.finished("end", "its end is acknowledged", now, count)
            case Kind.CLOSED:
                channel.finished("closed", _text(frame), now)
            case Kind.REFUSED:
                code, _, text = _text(frame).partition(" ")
                if not self.session.refused_for_good(channel, code, text, now):
                    self.abort(f"the channel was refused: {printable(text)}")
            case kind:
                raise ProtocolError(f"{self.remote} sent a frame {Kind(kind).name} at the wrong time")

    def _asked(self, channel: OutboundChannel, body: bytes) -> None:
        if len(body) > UPQUERY_LIMIT:
            raise ProtocolError(
                f"{self.remote} sent an upquery of {len(body)} bytes on channel {channel.id!r}: the limit is "
                f"{UPQUERY_LIMIT}"
            )
        if self.upqueries is None:
            self.upqueries = Upqueries()
        channel.on_upquery(self.upqueries, body)

    def output(self) -> list[Buffer]:
        """Handshake bytes first, then as much of the channel as a write takes."""
        buffers, channel = self._output, self.channel
        if buffers:
            self._output, self.more = [], self.attached
            return buffers
        self.more = False
        if channel is not None and self.attached and not self._lacking:
            if channel.durable is None:
                channel.seal()
            buffers = self._records(channel)
            if channel.store is not None or channel.pacing:
                channel.after_output()
        return buffers

    @property
    def lends(self) -> bool:
        return self._loan is not None and self.session.lender is not None and self.session.lender.lends

    def allocate(self, size: int) -> pa.Buffer | None:
        lender = self.session.lender
        return None if self._loan is None or lender is None else lender.allocate(size)

    def schema(self, channel: OutboundChannel) -> list[Buffer]:
        if self._schema_sent or not channel.schema:
            return []
        self._schema_sent = True
        return blob(Kind.SCHEMA, channel.schema)

    def _records(self, channel: OutboundChannel) -> list[Buffer]:
        """Return the records to send next, and the end after the last of them."""
        send_buffer = channel.send_buffer
        buffers = [] if self._schema_sent or not send_buffer.unsent else self.schema(channel)
        size = 0
        while size < WRITE_LIMIT and not (self._lacking or self.held_back):
            if self._parts is not None and (part := next(self._parts, None)) is not None:
                buffers += part
                size += FRAME_LIMIT
            elif send_buffer.unsent and (record := send_buffer.next_record()) is not None:
                shared = channel.shared_bytes
                buffers += self._begin(channel, record)
                if channel.shared_bytes != shared:
                    size += weight(record.size)
                elif self._parts is None:
                    size += record.size
            else:
                break
        self.more = size >= WRITE_LIMIT and not self.held_back
        if send_buffer.unsent or self.more or self._lacking or self.end_sent:
            return buffers
        if channel.closing is not None and (ending := channel.ending()) is not None:
            buffers.append(ending)
            self.end_sent = True
        elif (question := channel.question()) is not None:
            buffers.append(question)
        return buffers

    def _begin(self, channel: OutboundChannel, record: Record) -> Sequence[Buffer]:
        """Return the part of ``record`` that is to be written first: all, if it does not go in parts."""
        if (record.gap or not self._takes_all) and (
            feature := missing_feature(record, self.session.peer_features)
        ) is not None:
            self._lacking = True
            error = HandshakeError(f"channel {channel.id!r}: {describe_missing(self.session.peer, feature)}")
            self.core.timers.at(0.0, lambda now: channel.fail(SenderEvent.GIVE_UP, error, now))
            return []
        channel.sent = max(channel.sent, record.end)
        shared = self._share(channel, record) if len(record.body) >= SHARED_FROM else None
        frame: Sequence[Buffer] = record.whole(summed=self._summed) if shared is None else (shared,)
        self._parts = None if frame else record.parts(summed=self._summed)
        if record.context is self._context_sent or record.gap:
            return frame
        self._context_sent = record.context
        return [*blob(Kind.CONTEXT, record.context), *frame]

    def _share(self, channel: OutboundChannel, record: Record) -> bytes | None:
        """A frame that refers to the body, which is in shared memory then; None if it is to go with its frame."""
        if self._loan is None or self.session.lender is None:
            return None
        offset = self.session.lender.lend(self._loan, record.body)
        if offset is None:
            return None
        size = len(record.body)
        channel.shared_bytes += size
        self._ahead.append((record.end, size))
        self._ahead_size += size
        self.held_back = self._ahead_size > AHEAD_LIMIT
        return reference(offset, size, record.note, record.first, record.timestamp)

    def _returned(self, frame: Frame) -> None:
        """Reclaim shared memory that has no references left."""
        if self._loan is None or self.session.lender is None:
            raise ProtocolError(f"{self.remote} released shared memory, but has not received any")
        self.session.lender.returned(self._loan, frame.payload)

    def _caught_up(self, received: int) -> None:
        """The receiver has everything below ``received``."""
        ahead = self._ahead
        while ahead and ahead[0][0] <= received:
            self._ahead_size -= ahead.popleft()[1]
        if self.held_back and self._ahead_size <= AHEAD_LIMIT:
            self.held_back = False
            self.core.touch(self)

    def refused(self, error: HandshakeError, now: float) -> None:
        if self.channel is not None:
            self.channel.fail(SenderEvent.GIVE_UP, error, now)

    def drop(self) -> None:
        self.channel = None
        self.abort()

    def leave(self) -> None:
        self.channel = None
        self.close()

    def _refused_silently(self, now: float) -> None:
        self.abort(f"not accepted within {self.core.timing.handshake_s:.1f} s")

    def _lost(self, reason: str, now: float) -> None:
        if self.session.lender is not None:
            self.session.lender.lost(self._token)
        channel, self.channel = self.channel, None
        if channel is not None:
            why = f"the data connection to {self.remote} failed: {reason}"
            channel.unreachable(SenderEvent.DATA_LOST, why, now)
            self.session.data_lost(channel, now)


def _text(frame: Frame) -> str:
    return bytes(frame.payload[:1000]).decode(errors="replace")
