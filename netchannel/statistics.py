"""Counters of channels and servers: of senders and of receivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """The counters of both ends of a channel. ``since`` is the start of ``state`` (monotonic seconds).

    All messages below the number ``acknowledged`` are acknowledged. ``bytes`` counts the bytes of messages and notes;
    ``reconnects`` the attachments after the first; ``dropped`` the messages dropped by ``drop_oldest``;
    ``shared_bytes`` the bytes sent through shared memory, at each sending; and ``buffered_bytes`` the bytes of buffered
    messages in memory. ``starved`` is true if the producer waits for an acknowledgement and the consumer for a message:
    acknowledge before the sender's buffer is full.
    """

    state: str
    since: float
    acknowledged: int
    bytes: int
    buffered_messages: int
    buffered_bytes: int
    disk_bytes: int
    reconnects: int = 0
    dropped: int = 0
    shared_bytes: int = 0
    starved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderChannelStatistics(ChannelStatistics):
    """A sender's channel: messages below ``sent`` are sent, and those below ``received`` are at the receiver.

    ``buffered_*`` count the unacknowledged messages, of which ``in_flight`` are on the connection; ``disk_bytes`` is
    the size of the files of a durable or spilled buffer. ``upqueries`` counts the received upqueries, of which
    ``upqueries_dropped`` were dropped because too many waited.
    """

    sent: int
    received: int
    in_flight: int = 0
    upqueries: int = 0
    upqueries_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverChannelStatistics(ChannelStatistics):
    """A receiver's channel: ``received`` counts the messages received since the channel was registered.

    ``buffered_*`` count the unread or retained messages; ``disk_bytes`` is the size of the files of retained messages
    and of groups. ``upqueries`` counts the upqueries sent to the sender.
    """

    received: int
    upqueries: int = 0


@dataclass(frozen=True, slots=True)
class PeerStatistics:
    """A control connection, and the peer at its other end.

    ``address`` is the dialed address, or the origin of the connection; ``name`` is the peer's name, empty before the
    handshake. ``state`` is ``waiting`` (on a sender: to dial again), ``connecting`` or ``up``. ``channels`` is the
    number of channels that depend on the connection. ``round_trip_*`` are the round trips of heartbeats, including both
    event loops: the last, the smallest, and one smoothed as in TCP; None before the first. ``heard_s`` is the time
    since the last byte from the peer.
    """

    address: str
    name: str
    state: Literal["waiting", "connecting", "up"]
    channels: int
    round_trip_s: float | None = None
    round_trip_min_s: float | None = None
    round_trip_smoothed_s: float | None = None
    heard_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    """Another process of a node: its name, the port to which senders are redirected, and its number of channels."""

    name: str
    port: int
    channels: int


class Measured(TypedDict):
    """Counters of a server's connections, as `ServerStatistics` has it."""

    at: float
    connections: int
    bytes_sent: int
    bytes_received: int
    loop_lag_s: float
    loop_lag_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """A server's connections at the moment ``at``, on the clock of `ChannelStatistics.since`.

    ``connections`` is the number of open connections; ``bytes_sent`` and ``bytes_received`` count everything on the
    wire since the server was entered. ``loop_lag_s`` is the lateness of the event loop at its last due action, or, if
    it is blocked now, its lateness so far. ``loop_lag_max_s`` is the greatest lag of the last minute, or of up to two;
    reading does not reset it.
    """

    at: float
    peers: tuple[PeerStatistics, ...]
    connections: int
    bytes_sent: int
    bytes_received: int
    loop_lag_s: float
    loop_lag_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderServerStatistics(ServerStatistics):
    """A sender's connections, and its active channels by id and receiver."""

    channels: Mapping[tuple[str, str], SenderChannelStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverServerStatistics(ServerStatistics):
    """A receiver's connections, and its active channels by id.

    On the receiver with ``members=``, ``members`` are the other processes of the node. On a receiver with ``node=``,
    ``node`` is the connection to the receiver with ``members=``.
    """

    channels: Mapping[str, ReceiverChannelStatistics]
    members: tuple[MemberStatistics, ...] = ()
    node: PeerStatistics | None = None
