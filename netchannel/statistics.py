"""Counters of channels and servers: of senders and of receivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """The counters of both ends of a channel. ``since`` is when ``state`` began (monotonic seconds).

    ``acknowledged`` is a number of the stream: everything below is acknowledged. ``bytes`` counts message
    bytes and notes, ``reconnects`` attachments after the first, ``dropped`` messages dropped by ``drop_oldest``,
    ``shared_bytes`` what went through shared memory, each time that it was sent. ``buffered_bytes`` counts the
    buffered messages that are in memory. ``starved``: the producer waits for an acknowledgement, and the consumer for
    a message: acknowledge before the sender's buffer is full.
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

    ``buffered_*`` is what is kept until it is acknowledged, of which ``in_flight`` messages are on the connection;
    ``disk_bytes`` is the size of the files of a durable or spilled buffer. ``upqueries`` have come, of which
    ``upqueries_dropped`` were dropped because too many waited.
    """

    sent: int
    received: int
    in_flight: int = 0
    upqueries: int = 0
    upqueries_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverChannelStatistics(ChannelStatistics):
    """A receiver's channel: ``received`` counts messages off the wire since the channel was registered.

    ``buffered_*`` is what is not yet read, or what is kept; ``disk_bytes`` is the size of the files of what is kept,
    and of groups. ``upqueries`` went out to the sender.
    """

    received: int
    upqueries: int = 0


@dataclass(frozen=True, slots=True)
class PeerStatistics:
    """A control connection, and the peer at its other end.

    ``address`` is the one that was dialed, or where the connection came from; ``name`` is the peer's own,
    empty before it has sent it. ``state`` is ``waiting`` (on a sender: to dial again), ``connecting`` or
    ``up``. ``channels`` depend on it. ``round_trip_*`` are of heartbeats, both event loops included: the
    last, the smallest, and smoothed as TCP does; None before the first. ``heard_s`` is how long ago anything
    came from the peer.
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
    """Another process of a node: its own name, where senders are redirected to, and how many channels it has."""

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
    """A server's connections. ``at`` is when it was read, on the clock of `ChannelStatistics.since`.

    ``connections`` are open now; ``bytes_sent`` and ``bytes_received`` count all that went over them since
    the server was entered, as it is on the wire. ``loop_lag_s`` is how late the event loop was when something was last
    due, or is already if it is blocked now; ``loop_lag_max_s`` the greatest lag of the last minute (two at most),
    however often it was read meanwhile.
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
    """A sender: its channels that are not over, by id and receiver."""

    channels: Mapping[tuple[str, str], SenderChannelStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverServerStatistics(ServerStatistics):
    """A receiver: its channels that are not over, by id.

    ``members`` are the other processes of the node, on the receiver that has its address; ``node`` is the connection
    to that one, on a receiver that is a member itself.
    """

    channels: Mapping[str, ReceiverChannelStatistics]
    members: tuple[MemberStatistics, ...] = ()
    node: PeerStatistics | None = None
