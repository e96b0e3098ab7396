"""The receiver's end of a data connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.link import Closing, Link
from netchannel.core.upqueries import Upqueries
from netchannel.errors import ProtocolError, SchemaMismatch
from netchannel.wire.frame_parser import FrameParser
from netchannel.wire.frames import (
    HEAD,
    PAYLOAD_LIMIT,
    TOKEN_FRAME_LIMIT,
    UNSUMMED,
    Buffer,
    Frame,
    Kind,
    packed_offsets,
    referred,
    refused,
    signal,
)
from netchannel.wire.messages import ENDS_SIZE, TOKEN_SIZE, UPQUERIES

from .admission import Available, Refusal
from .tombstones import Tombstone

if TYPE_CHECKING:
    from netchannel.core.connections import Connections
    from netchannel.core.link import Core
    from netchannel.core.timers import Timers

    from .borrower import Borrower
    from .inbound import InboundChannel
    from .open_requests import OpenRequests


WRITE_LIMIT = 1 << 20
"""Bytes of upqueries that are written at a time."""
ACK_DELAY_S = 0.001
"""Longest delay of an acknowledgement that is not waited for."""


def _presented(frame: Frame) -> tuple[bytes, Available, bytes]:
    """The token, what its sender has, and what it shows of the connection's ends."""
    payload = bytes(frame.payload)
    token, rest = payload[:TOKEN_SIZE], payload[TOKEN_SIZE:]
    if len(token) != TOKEN_SIZE or len(rest) not in (0, HEAD.size, ENDS_SIZE, HEAD.size + ENDS_SIZE):
        raise ProtocolError(
            f"expected a token of {TOKEN_SIZE} bytes, optionally followed by a number ({HEAD.size} bytes) and the ends "
            f"of the connection ({ENDS_SIZE} bytes), got {len(payload)} bytes"
        )
    is_placed = len(rest) % ENDS_SIZE == HEAD.size
    head, ends = (rest[: HEAD.size], rest[HEAD.size :]) if is_placed else (b"", rest)
    return token, Available(frame.sequence, HEAD.unpack(head)[0] if head else None), ends


def _farewell(grave: Tombstone) -> bytes:
    if grave.reason == "closed":
        return signal(Kind.CLOSED, payload=grave.message.encode()[:1000])
    return signal(Kind.FINISHED, sequence=grave.messages)


class DelayedAcks:
    """The connections whose acknowledgements wait for what follows: one deadline for all of them."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._links: list[ReceiverData] = []

    def add(self, link: ReceiverData, now: float) -> None:
        """``link`` has something to acknowledge, and is not here yet."""
        if not self._links:
            self._timers.at(now + ACK_DELAY_S, self._say)
        self._links.append(link)

    def _say(self, now: float) -> None:
        # Taken out before any is reminded: channels added from now on need their own deadline.
        links, self._links = self._links, []
        for link in links:
            link.remind()


class ReceiverData(Link):
    """Takes the token, then the channel's frames; gives acknowledgements back."""

    def __init__(
        self,
        core: Core,
        connections: Connections,
        open_requests: OpenRequests,
        delayed_acks: DelayedAcks,
        remote: str,
    ) -> None:
        super().__init__(core, remote)
        self._connections = connections
        self._open_requests = open_requests
        self._parser = FrameParser(core.slab, core.pool, 0, TOKEN_FRAME_LIMIT)  # as long as there is no token
        self._channel: InboundChannel | None = None
        self._delayed_acks = delayed_acks
        self._token = b""
        self._borrower: Borrower | None = None
        self._released: list[int] = []  # offsets of bodies in shared memory
        self._upqueries: Upqueries | None = None  # that are still to be written
        self._leaving = False  # the last word is sent; later bytes are ignored
        self._parting: InboundChannel | None = None  # whose last word that is
        self._now = 0.0  # when something was received last
        self._owing = self._remembered = False  # an acknowledgement that may wait, and the deadline for it
        self.acknowledging = False

    def connected(self, now: float) -> None:
        self.arm(now + self.core.timing.handshake_s, self._expired)

    def get_buffer(self, hint: int) -> memoryview:
        return self.core.slab if self._leaving else self._parser.get_buffer()

    def _received(self, n: int, now: float) -> None:
        if self._leaving:
            return
        self._now = now
        if self._channel is not None and self._channel.session is not None:
            self._channel.session.heard(now)
        try:
            for frame in self._parser.received(n):
                if self.closing is not Closing.OPEN or self._leaving:
                    return
                if self._channel is None:
                    self._attach(frame, now)
                else:
                    self._take(self._channel, frame, now)
        finally:  # also of what came in front of a frame that violates the protocol
            if self._channel is not None and self._channel.retainer is not None:
                self._channel.retainer.drain(now)

    def _attach(self, frame: Frame, now: float) -> None:
        if frame.kind != Kind.ATTACH:
            raise ProtocolError(f"expected a token, got a frame {Kind(frame.kind).name}")
        token, available, ends = _presented(frame)
        match self._open_requests.redeem(token, available, now):
            case Refusal() as against:
                self._refuse(against, now)
            case Tombstone() as grave:
                self._admitted()  # first: it ends the deadline for the token, and the last word sets one for itself
                self.leave(_farewell(grave), now)
            case channel:
                self._admitted()
                self._channel = channel
                if channel.session is not None:
                    self._token, self._borrower = (
                        bytes(frame.payload[:TOKEN_SIZE]),
                        channel.session.borrower,
                    )
                self._parser.payload_limit = PAYLOAD_LIMIT
                self._parser.message_limit = self._open_requests.message_limit
                self._parser.summed = not self.is_direct(ends)
                channel.attach(self, frame.sequence, now, 0 if self._parser.summed else UNSUMMED)

    def _admitted(self) -> None:
        self.disarm()
        self._connections.proven(self)

    def _refuse(self, against: Refusal, now: float) -> None:
        if against.code == "token":
            text = "%s: %s presented a token: %s"
            self.core.complain(self.remote, now, text, self.core.name, self.remote, against.message)
        self.send(refused(against.code, against.message))
        self.close()

    def _take(self, channel: InboundChannel, frame: Frame, now: float) -> None:
        match frame.kind:
            case Kind.DATA:
                channel.deliver(frame)
            case Kind.PART | Kind.SHARED:
                channel.deliver_large(frame if frame.kind == Kind.PART else self._referred(channel, frame))
            case Kind.SCHEMA:
                self._learn(channel, bytes(frame.payload), now)
            case Kind.CONTEXT:
                channel.learn_context(bytes(frame.payload))
            case Kind.GAP:
                channel.gap(frame.sequence, frame.items)
            case Kind.BLOCKED:
                channel.blocked(frame.sequence, frame.items)
            case Kind.ASK:
                channel.asked(frame.sequence)
            case Kind.END:
                channel.end(frame.sequence, now)
            case Kind.FAIL:
                channel.aborted(frame.sequence, bytes(frame.payload).decode(errors="replace"), now)
            case kind:
                raise ProtocolError(f"unexpected frame {Kind(kind).name} at this point of the connection")

    @staticmethod
    def _learn(channel: InboundChannel, schema: bytes, now: float) -> None:
        try:
            channel.learn(schema)
        except SchemaMismatch as error:
            channel.fail(error, now)

    def _referred(self, channel: InboundChannel, frame: Frame) -> Frame:
        """The message that a frame refers to."""
        offset, size, note = referred(frame)
        if self._borrower is None:
            raise ProtocolError(f"{self.remote} referred to shared memory, but has shared none")
        if size > self._open_requests.message_limit:
            raise ProtocolError(
                f"a body of {size} bytes is larger than the limit here, {self._open_requests.message_limit} bytes"
            )
        body = self._borrower.body(offset, size, self)
        channel.shared_bytes += size
        return frame._replace(payload=body, note=note)

    def release(self, offset: int) -> None:
        """Send, at the end of this turn of the loop, that ``offset`` has no references left."""
        self._released.append(offset)
        self.core.touch(self)

    def upquery(self, body: bytes) -> bool:
        """Ask the sender at the end of this turn of the loop; False if it takes no upqueries, or too many wait here."""
        channel = self._channel
        if channel is None or channel.session is None or self.closing is not Closing.OPEN:
            return False
        if UPQUERIES not in channel.session.peer_features:
            return False
        if self._upqueries is None:
            self._upqueries = Upqueries()
        if not self._upqueries.fits(body):
            return False
        self._upqueries.add(body)
        self.core.touch(self)
        return True

    def acknowledge(self) -> None:
        """Send at the end of this turn of the loop the acknowledged number."""
        self.acknowledging = True
        self._owing = False
        self.core.touch(self)

    def acknowledge_later(self) -> None:
        """The same, after a little while, with what is acknowledged by then."""
        self._owing = True
        if not self._remembered:
            self._remembered = True
            self._delayed_acks.add(self, self._now)

    def remind(self) -> None:
        """The little while has passed."""
        self._remembered = False
        if self._owing:
            self.acknowledge()

    def touched(self) -> None:
        self.core.touch(self)

    def output(self) -> list[Buffer]:
        """Return queued frames and due acknowledgements; then upqueries, as many as a write takes."""
        buffers = super().output()
        if self.acknowledging and self._channel is not None:
            self.acknowledging = False
            buffers += self._channel.acknowledgements()
        if self._released:
            released, self._released = self._released, []
            buffers.append(signal(Kind.RELEASED, count=len(released), payload=packed_offsets(released)))
        if self._upqueries is not None and self._channel is not None:  # nothing follows the last word
            buffers += self._some_upqueries(self._upqueries)
        return buffers

    def _some_upqueries(self, waiting: Upqueries) -> list[Buffer]:
        """As many as a write takes: what is acknowledged meanwhile goes in front of the rest."""
        buffers: list[Buffer] = []
        size = 0
        while waiting and size < WRITE_LIMIT:
            body = waiting.take()
            size += len(body)
            buffers.append(signal(Kind.UPQUERY, payload=body))
        self.more = bool(waiting)
        if not waiting:
            self._upqueries = None
        return buffers

    def supersede(self) -> None:
        """A newer attempt has the channel."""
        self._channel = None
        self.abort()

    def leave(self, farewell: Buffer | None, now: float) -> None:
        """The channel is over: notify the sender, and wait a little until it has read this and hangs up."""
        self._leaving = True
        if farewell is None:
            self._channel = None
            self.abort()
            return
        if self._channel is not None:
            self.send(*self._channel.acknowledgements())
            self._channel.parting = True
        self._parting, self._channel = self._channel, None
        self._say_last(farewell, now)

    def violated(self, error: ProtocolError, now: float) -> None:
        """Send the reason; the sender, which may not be at fault, comes back by another connection."""
        self.complain_of(error, now)
        self.cause = str(error)
        channel, self._channel = self._channel, None
        if channel is None:
            self._refuse(Refusal("protocol", self.cause), now)
            return
        self._say_last(refused("protocol", self.cause), now)
        self._detach(channel, self.cause, now)

    def _say_last(self, farewell: Buffer, now: float) -> None:
        """Send the last word and close later.

        Bytes that still arrive would make a close now a reset, which may overtake it.
        """
        self._leaving = True
        self._parser.drop()
        self.reading = True
        self.send(farewell)
        self._connections.farewells[self] = None
        self.arm(now + self.core.timing.leave_s, self._expired)

    def _expired(self, now: float) -> None:
        self.abort()

    def _lost(self, reason: str, now: float) -> None:
        self._parser.drop()
        self._connections.gone(self)
        if self._borrower is not None:
            self._borrower.over(self, self._token)
        parting, self._parting = self._parting, None
        if parting is not None:
            parting.parted()
        channel, self._channel = self._channel, None
        self._detach(channel, reason, now)

    def _detach(self, channel: InboundChannel | None, reason: str, now: float) -> None:
        if channel is not None and channel.link is self:
            channel.lost(f"the data connection from {self.remote} failed: {reason}", now)
