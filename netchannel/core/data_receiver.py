"""The receiver's ends of new connections: the greeting that tells their purpose, and data connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.errors import ProtocolError, SchemaMismatch

from .admission import Kept, Refusal
from .control import FOR_DATA, GREETING, MAGIC, with_check
from .envelope import encode
from .frames import HEAD, PAYLOAD_LIMIT, TOKEN_FRAME_LIMIT, Buffer, Frame, Kind, signal
from .link import Closing, Link, log, printable
from .messages import TOKEN_SIZE, VERSION, Error
from .parsing import FrameParser
from .pieces import Pieces
from .tombstones import Tombstone

if TYPE_CHECKING:
    from collections.abc import Collection

    from netchannel.errors import HandshakeError

    from .inbound import InboundChannel
    from .receiver import ReceiverCore


def refused(code: str, text: str) -> bytes:
    """The frame that says no."""
    return signal(Kind.REFUSED, payload=f"{code} {text}".encode()[:1000])


def _presented(frame: Frame) -> tuple[bytes, Kept]:
    """The token, and what its sender has."""
    payload = bytes(frame.payload)
    token, rest = payload[:TOKEN_SIZE], payload[TOKEN_SIZE:]
    if len(token) != TOKEN_SIZE or len(rest) not in (0, HEAD.size):
        raise ProtocolError(f"a token has {TOKEN_SIZE} bytes, and a number 8: {len(payload)} came")
    return token, Kept(frame.sequence, HEAD.unpack(rest)[0] if rest else None)


def _farewell(grave: Tombstone) -> bytes:
    if grave.reason == "closed":
        return signal(Kind.CLOSED, payload=grave.message.encode()[:1000])
    return signal(Kind.FINISHED, sequence=grave.messages)


TLS_HANDSHAKE = b"\x16\x03"
"""How a sender begins that speaks TLS."""
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"
"""What it understands: a record of TLS with the fatal alert protocol_version (RFC 8446, 6.2)."""


class Incoming(Link):
    """A connection that was accepted and has not said what it is for."""

    def __init__(self, core: ReceiverCore, remote: str, purposes: Collection[int]) -> None:
        super().__init__(core, remote)
        self._receiver = core
        self._purposes = purposes
        self._greeting = memoryview(bytearray(GREETING.size))
        self._filled = 0

    def connected(self, now: float) -> None:
        self.arm(now + self.core.timing.handshake_s, self._silent)
        self._receiver.make_room(now)

    def get_buffer(self, hint: int) -> memoryview:
        # Exactly the greeting is read, so that nothing is left over for whoever takes the connection on. Behind one
        # that is refused something may come, too: it goes nowhere, but the loop asks for room.
        return self._greeting[self._filled :] if self._filled < len(self._greeting) else self.core.slab

    def _received(self, n: int, now: float) -> None:
        self._filled += n
        if self._filled != len(self._greeting):  # not there yet, or what comes behind one that is refused
            return
        if self._greeting[: len(TLS_HANDSHAKE)] == TLS_HANDSHAKE:
            # Not closed here: what is on its way would make that a reset, which could overtake the answer.
            self.send(TLS_ALERT)
            self._warn("it speaks TLS, and this receiver has no tls=: give it to both, or to neither", now)
            return
        magic, lowest, highest, purpose, _ = GREETING.unpack(self._greeting)
        good = with_check(bytes(self._greeting)) == self._greeting
        if not good or magic != MAGIC or purpose not in self._purposes:
            raise ProtocolError(
                f"its first bytes {bytes(self._greeting)!r} are not those of a network channel"
            )
        if not lowest <= VERSION <= highest:
            text = f"the sender speaks versions {lowest} to {highest}, the receiver version {VERSION}"
            if purpose == FOR_DATA:
                self.send(refused("version", text))
            else:
                self.send(encode(Error(message=text, permanent=True)))
            self._warn(text, now)
            self.close()
            return
        self.disarm()
        self.replacement = self._receiver.accepted(self, purpose)
        self.replacement.adapter = self.adapter
        self.replacement.connected(now)

    def refused(self, error: HandshakeError, now: float) -> None:
        self._warn(str(error), now)

    def _warn(self, why: str, now: float) -> None:
        told = "%s: connection from %s closed: %s"
        self.core.complain(self.remote, now, told, self.core.name, self.remote, printable(why))

    def _silent(self, now: float) -> None:
        log.debug("%s: %s said nothing for %.1f s", self.core.name, self.remote, self.core.timing.handshake_s)
        self.abort()

    def _lost(self, reason: str, now: float) -> None:
        self._receiver.gone(self)


class ReceiverData(Link):
    """Takes the token, then the channel's frames; gives acknowledgements back."""

    def __init__(self, core: ReceiverCore, remote: str) -> None:
        super().__init__(core, remote)
        self._receiver = core
        self._parser = FrameParser(core.slab, core.pool, core.message_limit, TOKEN_FRAME_LIMIT)
        self._channel: InboundChannel | None = None
        self._leaving = False  # the channel is over; what still comes is passed over
        self.acknowledging = False
        self._pieces = Pieces(core.message_limit)

    def connected(self, now: float) -> None:
        self.arm(now + self.core.timing.handshake_s, self._expired)

    def get_buffer(self, hint: int) -> memoryview:
        return self._parser.get_buffer()

    def _received(self, n: int, now: float) -> None:
        if self._channel is not None and self._channel.session is not None:
            self._channel.session.heard(now)
        for frame in self._parser.received(n):
            if self.closing is not Closing.OPEN or self._leaving:
                return
            if self._channel is None:
                self._attach(frame, now)
            else:
                self._take(self._channel, frame, now)
        if self._channel is not None and self._channel.keeper is not None:
            self._channel.keeper.drain(now)

    def _attach(self, frame: Frame, now: float) -> None:
        if frame.kind != Kind.ATTACH:
            raise ProtocolError(f"a frame {Kind(frame.kind).name} came where a token was due")
        match self._receiver.opening.redeem(*_presented(frame), now):
            case Refusal() as against:
                self._refuse(against, now)
            case Tombstone() as grave:
                self._admitted()
                self.leave(_farewell(grave), now)
            case channel:
                self._admitted()
                self._channel = channel
                self._parser.payload_limit = PAYLOAD_LIMIT
                channel.attach(self, frame.sequence, now)

    def _admitted(self) -> None:
        self.disarm()
        self._receiver.proven(self)

    def _refuse(self, against: Refusal, now: float) -> None:
        if against.code == "token":
            text = "%s: %s comes with a token: %s"
            self.core.complain(self.remote, now, text, self.core.name, self.remote, against.message)
        self.send(refused(against.code, against.message))
        self.close()

    def _take(self, channel: InboundChannel, frame: Frame, now: float) -> None:
        self._pieces.check_whole(frame)
        match frame.kind:
            case Kind.DATA:
                channel.deliver(frame)
            case Kind.PART:
                channel.deliver_part(frame)
            case Kind.SCHEMA | Kind.CONTEXT:
                self._collect(channel, frame, now)
            case Kind.GAP:
                channel.gap(frame.sequence, frame.items)
            case Kind.BLOCKED:
                channel.blocked(frame.sequence, frame.items)
            case Kind.END:
                channel.end(frame.sequence, now)
            case Kind.FAIL:
                channel.aborted(frame.sequence, bytes(frame.payload).decode(errors="replace"), now)
            case kind:
                raise ProtocolError(f"a frame {Kind(kind).name} came out of place")

    def _collect(self, channel: InboundChannel, frame: Frame, now: float) -> None:
        whole = self._pieces.add(frame)
        if whole is None:
            return
        try:
            if frame.kind == Kind.CONTEXT:
                channel.learn_context(whole)
            else:
                channel.learn(whole)
        except SchemaMismatch as error:
            channel.fail(error, now)

    def acknowledge(self) -> None:
        """Say at the end of this turn of the loop what is acknowledged."""
        self.acknowledging = True
        self.core.touch(self)

    def touched(self) -> None:
        self.core.touch(self)

    def output(self) -> list[Buffer]:
        """What is queued, and the acknowledgements that are due."""
        buffers = super().output()
        if self.acknowledging and self._channel is not None:
            self.acknowledging = False
            buffers += self._channel.acknowledgements()
        return buffers

    def supersede(self) -> None:
        """A newer attempt has the channel."""
        self._channel = None
        self.abort()

    def leave(self, farewell: Buffer | None, now: float) -> None:
        """The channel is over: say so, and wait a little until the sender has heard it and hangs up."""
        self._leaving = True
        if farewell is None:
            self._channel = None
            self.abort()
            return
        if self._channel is not None:
            self.send(*self._channel.acknowledgements())
        self._channel = None
        self.reading = True
        self.send(farewell)
        self._receiver.farewells.add(self)
        self.arm(now + self.core.timing.leave_s, self._expired)

    def _expired(self, now: float) -> None:
        self.abort()

    def _lost(self, reason: str, now: float) -> None:
        self._receiver.gone(self)
        if self in self._receiver.farewells:
            self._receiver.farewells.discard(self)
            self._receiver.on_farewells_done()
        channel, self._channel = self._channel, None
        if channel is not None and channel.link is self:
            channel.lost(f"the data connection from {self.remote} failed: {reason}", now)
