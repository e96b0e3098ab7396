"""Control connections: greeting, heartbeats and messages, the same for all sides."""

from __future__ import annotations

import hmac
import logging
import struct
from abc import abstractmethod
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from netchannel.errors import HandshakeError, ProtocolError
from netchannel.log_texts import encodable, log, printable
from netchannel.statistics import PeerStatistics
from netchannel.wire import messages
from netchannel.wire.envelope import MESSAGE_LIMIT, STRANGER_LIMIT, MessageParser, encode

from .link import Closing, Link

if TYPE_CHECKING:
    from netchannel.wire.declarations import Message

    from .link import Core

GREETING = struct.Struct("<4sBBBB")
"""The first 8 bytes of every connection: magic, lowest and highest version, purpose, check of the seven before."""
MAGIC = b"NETC"
FOR_CONTROL, FOR_DATA, FOR_MEMBERS, FOR_REQUESTS, FOR_READING = 0, 1, 2, 3, 4


def greeting(purpose: int) -> bytes:
    """Return the first bytes from the dialing side."""
    return with_check(GREETING.pack(MAGIC, messages.VERSION, messages.VERSION, purpose, 0))


def with_check(greeting: bytes) -> bytes:
    """The greeting with its last byte set: the lowest of XXH3-64 over the others."""
    return greeting[:-1] + bytes([xxh3_64_intdigest(greeting[:-1]) & 0xFF])


class RoundTrip:
    """Times between a heartbeat and its answer, in seconds; None before the first."""

    def __init__(self) -> None:
        self.last_s: float | None = None
        self.smallest_s: float | None = None
        self.smoothed_s: float | None = None

    def note(self, seconds: float) -> None:
        """An answer came. Smoothed as TCP does (RFC 6298): an eighth of the difference each time."""
        self.last_s = seconds
        if self.smallest_s is None or self.smoothed_s is None:
            self.smallest_s = self.smoothed_s = seconds
        else:
            self.smallest_s = min(self.smallest_s, seconds)
            self.smoothed_s += (seconds - self.smoothed_s) / 8


class ControlLink(Link):
    """One side of a control connection."""

    control = True
    role = other_role = b""
    """The roles of this side and of the other; in the proofs, so that a peer's own cannot be sent back to it."""
    dialed = False
    """True if this side made the connection."""
    features: frozenset[str] = frozenset()
    """Features of this side that a smaller implementation may lack."""

    def __init__(self, core: Core, remote: str) -> None:
        super().__init__(core, remote)
        self.peer = remote
        self.node = ""
        self.line = b""
        """An id shared by the successive connections from one process to one place."""
        self.greeted = False
        self.peer_features: frozenset[str] = frozenset()
        self.round_trip = RoundTrip()
        self._parser = MessageParser(STRANGER_LIMIT)
        self._nonce = core.random(messages.NONCE_SIZE)
        self._peer_nonce = b""
        self._heard = 0.0
        self._beat_due = 0.0
        self._beat_s = core.timing.heartbeat_s

    def say(self, message: Message) -> None:
        """Send one message."""
        self.send(encode(message))

    def connected(self, now: float) -> None:
        """Begin the handshake."""
        self._heard = now
        self.arm(now + self.core.timing.handshake_s, self._handshake_expired)
        hello = messages.Hello(
            version=messages.VERSION,
            node=self.core.name,
            dead_after_ms=int(self.core.timing.dead_after_s * 1000),
            nonce=self._nonce,
            line=self.line or None,
            secret=self.core.secret is not None,
            features=" ".join(sorted(self.features)) or None,
        )
        self.say(hello)

    def heard(self, now: float) -> None:
        """A byte came from the peer, on this connection or on one that depends on it."""
        self._heard = now

    def get_buffer(self, hint: int) -> memoryview:
        return self.core.slab

    def _received(self, n: int, now: float) -> None:
        self._heard = now
        for message in self._parser.received(self.core.slab[:n]):
            if self.closing is not Closing.OPEN:
                return
            self._dispatch(message, now)

    def _dispatch(self, message: Message, now: float) -> None:
        match message:
            case messages.Hello():
                self._greet(message, now)
            case messages.Proof():
                self._check_proof(message.mac, now)
            case messages.Error():
                self._told_off(message, now)
            case messages.Ping():
                if self.writable:  # else the peer does not read, and answers would pile up
                    self.say(messages.Pong(at=message.at))
            case messages.Pong():
                self.round_trip.note(max(0.0, now - message.at / 1e6))
            case _ if self.greeted:
                self.told(message, now)
            case _:
                raise ProtocolError(f"{self.peer} sent {message.kind!r} before its hello")

    def _told_off(self, message: messages.Error, now: float) -> None:
        """The peer hangs up; only a mismatch of versions or secrets is permanent."""
        said = printable(message.message)
        self.cause = f"the other side reports: {said}"
        if message.permanent:
            self.refused(HandshakeError(f"{self.peer} reports: {said}"), now)
        else:
            self.abort()

    def _greet(self, message: messages.Hello, now: float) -> None:
        if self._peer_nonce:
            raise ProtocolError(f"{self.peer} sent a second hello")
        if message.secret is not (self.core.secret is not None):
            has, lacks = ("requires a", "has none") if message.secret else ("has no", "requires one")
            raise HandshakeError(
                f"{self.peer} {has} secret, and this side {lacks}: give both sides the same secret="
            )
        self._peer_nonce = message.nonce
        self.line = self.line or message.line or self._peer_nonce
        self.peer_features = frozenset((message.features or "").split())
        self.node = printable(message.node[:200])
        self.peer = f"{self.node} at {self.remote}"
        self._beat_s = min(self._beat_s, max(message.dead_after_ms / 3000, 0.01))
        # Also without a secret: a peer that has received this connection's nonce is at its other end, and not
        # a recording.
        self.say(messages.Proof(mac=self._mac(self.role, self._nonce, self._peer_nonce)))

    def _mac(self, role: bytes, own: bytes, other: bytes) -> bytes:
        return hmac.digest(self.core.secret or b"", b"netchannel " + role + own + other, "sha256")

    def _check_proof(self, mac: bytes, now: float) -> None:
        if self.greeted or not self._peer_nonce:
            raise ProtocolError(f"{self.peer} sent a proof without a challenge")
        expected = self._mac(self.other_role, self._peer_nonce, self._nonce)
        if not hmac.compare_digest(mac, expected):
            if self.core.secret is None:
                raise ProtocolError(f"{self.peer} sent its proof before it had read this side's hello")
            raise HandshakeError(f"{self.peer} has a different secret: give both sides the same secret=")
        self._establish(now)

    def _establish(self, now: float) -> None:
        self.greeted = True
        self._parser.limit = MESSAGE_LIMIT
        self._beat(now)
        self.established(now)

    def _handshake_expired(self, now: float) -> None:
        self.abort(f"the handshake took longer than {self.core.timing.handshake_s:.1f} s")

    def _beat(self, now: float) -> None:
        dead_after = self.core.timing.dead_after_s
        if now - self._beat_due > self._beat_s:
            # We were late ourselves: what the peer sent meanwhile is still to be read, so judge it one beat later.
            self._heard = max(self._heard, now - dead_after + self._beat_s)
        if now - self._heard >= dead_after:
            self.abort(f"no sign of life for {dead_after:.1f} s")
            return
        self.say(messages.Ping(at=int(now * 1e6)))
        self._beat_due = now + self._beat_s
        self.arm(self._beat_due, self._beat)

    def violated(self, error: ProtocolError, now: float) -> None:
        """Send the peer the reason before hanging up."""
        self.say(
            messages.Error(message=encodable(str(error)[:1000]), permanent=isinstance(error, HandshakeError))
        )
        self.close(str(error))

    def lost(self, reason: str, now: float) -> None:
        """Log it, once: a peer that dials in vain warns once per episode."""
        text = "%s: control connection with %s is down: %s"
        details = (self.core.name, self.peer, self.cause or reason)
        ordinary = logging.INFO if self.greeted else logging.DEBUG
        if self.cause and (self.greeted or not self.dialed):
            self.core.complain(self.remote, now, text, *details, repeated=ordinary)
        else:
            log.log(ordinary, text, *details)
        super().lost(reason, now)

    def statistics(self, channels: int, now: float) -> PeerStatistics:
        """Return the statistics of this connection, which ``channels`` depend on."""
        return PeerStatistics(
            address=self.remote,
            name=self.node,
            state="up" if self.greeted else "connecting",
            channels=channels,
            round_trip_s=self.round_trip.last_s,
            round_trip_min_s=self.round_trip.smallest_s,
            round_trip_smoothed_s=self.round_trip.smoothed_s,
            heard_s=max(0.0, now - self._heard) if self.greeted else None,
        )

    @abstractmethod
    def established(self, now: float) -> None:
        """Both sides have sent hello, and proved that they know the secret."""

    @abstractmethod
    def told(self, message: Message, now: float) -> None:
        """A message for this side."""

    @abstractmethod
    def refused(self, error: HandshakeError, now: float) -> None:
        """The peer will not talk to us, or stopped to."""
