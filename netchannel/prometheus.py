"""Metrics of servers and channels for Prometheus, read when they are scraped.

::

    from netchannel.prometheus import ChannelCollector
    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(ChannelCollector(sender, receiver))
    start_http_server(9464)

Nothing is counted twice and nothing kept: a scrape reads `SenderServer.statistics` and `ReceiverServer.statistics`,
from its own thread. A channel that is over has no series any more.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError(
        "netchannel.prometheus needs prometheus-client, which is not installed: pip install 'netchannel[metrics]'"
    ) from error

from netchannel import aio
from netchannel.core.states import RECEIVER_TERMINAL, SENDER_TERMINAL, ReceiverState, SenderState
from netchannel.errors import NetChannelError
from netchannel.process import blocking as process
from netchannel.servers.receiver import ReceiverServer
from netchannel.servers.sender import SenderServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from netchannel.statistics import (
        ChannelStatistics,
        PeerStatistics,
        ReceiverServerStatistics,
        SenderServerStatistics,
    )

    Sender = SenderServer | process.BlockingSenderServer | aio.SenderServer
    Receiver = ReceiverServer | process.BlockingReceiverServer | aio.ReceiverServer
    Family = CounterMetricFamily | GaugeMetricFamily

__all__ = ["ChannelCollector"]

COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily


class Metric(NamedTuple):
    """One name below ``netchannel_sender_`` or ``netchannel_receiver_``, and where its value comes from."""

    name: str
    family: type[Family]
    help: str
    value: Callable[[Any], float | None]


_OF_CHANNELS = (
    Metric(
        "acknowledged", COUNTER, "Messages of the stream that are acknowledged.", attrgetter("acknowledged")
    ),
    Metric("bytes", COUNTER, "Bytes of messages and notes.", attrgetter("bytes")),
    Metric(
        "buffered_bytes",
        GAUGE,
        "Bytes of the buffered messages that are in memory.",
        attrgetter("buffered_bytes"),
    ),
    Metric("reconnects", COUNTER, "Reattachments of the channel to its peer.", attrgetter("reconnects")),
    Metric("dropped", COUNTER, "Messages dropped by drop_oldest.", attrgetter("dropped")),
    Metric("shared_bytes", COUNTER, "Bytes that went through shared memory.", attrgetter("shared_bytes")),
    Metric(
        "starved",
        GAUGE,
        "1 if producer and consumer wait for each other: acknowledge more often.",
        attrgetter("starved"),
    ),
)
SENDER_CHANNELS = (
    Metric("messages", COUNTER, "Messages of the stream that were sent.", attrgetter("sent")),
    Metric("received", COUNTER, "Messages of the stream that the receiver has.", attrgetter("received")),
    Metric("buffered_messages", GAUGE, "Messages kept until acknowledged.", attrgetter("buffered_messages")),
    Metric("disk_bytes", GAUGE, "The size of the buffer's files.", attrgetter("disk_bytes")),
    Metric(
        "in_flight_messages", GAUGE, "Buffered messages that are on the connection.", attrgetter("in_flight")
    ),
    Metric("upqueries", COUNTER, "Upqueries received.", attrgetter("upqueries")),
    Metric(
        "upqueries_dropped",
        COUNTER,
        "Upqueries dropped because too many waited for the producer.",
        attrgetter("upqueries_dropped"),
    ),
    *_OF_CHANNELS,
)
RECEIVER_CHANNELS = (
    Metric("messages", COUNTER, "Messages received.", attrgetter("received")),
    Metric(
        "buffered_messages", GAUGE, "Messages received and not yet read.", attrgetter("buffered_messages")
    ),
    Metric("upqueries", COUNTER, "Upqueries sent.", attrgetter("upqueries")),
    *_OF_CHANNELS,
)
PEERS = (
    Metric("control_up", GAUGE, "1 if the control connection is up.", lambda peer: peer.state == "up"),
    Metric(
        "control_channels", GAUGE, "Channels that depend on the control connection.", attrgetter("channels")
    ),
    Metric(
        "control_round_trip_seconds",
        GAUGE,
        "Smoothed round-trip time of heartbeats, including the lag of both event loops.",
        attrgetter("round_trip_smoothed_s"),
    ),
    Metric(
        "control_round_trip_min_seconds",
        GAUGE,
        "Smallest round-trip time of this connection.",
        attrgetter("round_trip_min_s"),
    ),
    Metric(
        "control_heard_seconds", GAUGE, "Time since the last sign of life of the peer.", attrgetter("heard_s")
    ),
)
SERVERS = (
    Metric("connections", GAUGE, "Open connections, control and data.", attrgetter("connections")),
    Metric("network_sent_bytes", COUNTER, "All bytes sent, as on the wire.", attrgetter("bytes_sent")),
    Metric(
        "network_received_bytes", COUNTER, "All bytes received, as on the wire.", attrgetter("bytes_received")
    ),
    Metric("event_loop_lag_seconds", GAUGE, "Latest lag of the event loop.", attrgetter("loop_lag_s")),
    Metric(
        "event_loop_lag_max_seconds",
        GAUGE,
        "Greatest lag of the event loop in the last one to two minutes.",
        attrgetter("loop_lag_max_s"),
    ),
)


NODES = (
    Metric(
        "members", GAUGE, "Other processes of the node that are connected.", lambda all_: len(all_.members)
    ),
    Metric(
        "node_up",
        GAUGE,
        "1 if the process that has the node's address is connected; only members report it.",
        lambda all_: None if all_.node is None else all_.node.state == "up",
    ),
)


class Side(NamedTuple):
    """The differences between the metrics of senders and of receivers."""

    prefix: str
    channels: Sequence[Metric]
    channel_labels: Sequence[str]
    peer_label: str
    servers: Sequence[Metric]
    states: Sequence[str]


# States that a channel does not leave are left out: its series end with it.
SENDER = Side(
    "netchannel_sender_",
    SENDER_CHANNELS,
    ("channel", "to"),
    "to",
    SERVERS,
    [state for state in SenderState if state not in SENDER_TERMINAL],
)
RECEIVER = Side(
    "netchannel_receiver_",
    RECEIVER_CHANNELS,
    ("channel",),
    "from",
    (*SERVERS, *NODES),
    [state for state in ReceiverState if state not in RECEIVER_TERMINAL],
)


class ChannelCollector:
    """Gives a `prometheus_client` registry the metrics of one sender, one receiver, or both, in any order.

    Process-wide servers of either kind are accepted too. A server that is not running has no series. Two of the same
    kind would give the same names to different things: TypeError; use a registry for each.
    """

    def __init__(self, *servers: Sender | Receiver) -> None:
        self._servers = [(_side(server), server) for server in servers]
        if len(self._servers) != len({side.prefix for side, _ in self._servers}):
            raise TypeError(
                f"{len(servers)} servers, two of the same kind: give at most one sender and one receiver, and give "
                f"further servers to a ChannelCollector of another registry"
            )

    def describe(self) -> Iterator[Family]:
        """All metrics, without values: the registry asks for the names of what it is given."""
        for side, _ in self._servers:
            yield from families(side, None)

    def collect(self) -> Iterator[Family]:
        """All metrics, as they are now."""
        for side, server in self._servers:
            try:
                statistics = server.statistics()
            except NetChannelError:  # it is not entered yet, or was left
                statistics = None
            yield from families(side, statistics)


def _side(server: Sender | Receiver) -> Side:
    if isinstance(server, SenderServer | process.BlockingSenderServer | aio.SenderServer):
        return SENDER
    if isinstance(server, ReceiverServer | process.BlockingReceiverServer | aio.ReceiverServer):
        return RECEIVER
    raise TypeError(f"{server!r} is neither a SenderServer nor a ReceiverServer")


def families(
    side: Side, statistics: SenderServerStatistics | ReceiverServerStatistics | None
) -> Iterator[Family]:
    """The metrics of one side (`SENDER`, `RECEIVER`), with the values of ``statistics``, if there are any."""
    servers, peers, channels = [], {}, []
    if statistics is not None:
        servers = [((), statistics)]
        peers = _peers(side, statistics.peers)
        channels = [(_labels(key), channel) for key, channel in statistics.channels.items()]
    for metrics, labels, rows in (
        (side.channels, side.channel_labels, channels),
        (PEERS, (side.peer_label,), peers.items()),
        (side.servers, (), servers),
    ):
        for metric in metrics:
            yield _family(side, metric, labels, rows)
    yield _states(side, channels)
    yield _since(side, channels, 0.0 if statistics is None else time.time() - statistics.at)


def _labels(key: str | tuple[str, str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _peers(side: Side, peers: Iterable[PeerStatistics]) -> dict[tuple[str, ...], PeerStatistics]:
    """Peers by label: where they are dialed, or what they call themselves.

    A sender that came back may still have its old connection in addition to the new one: the one with the
    latest sign of life counts.
    """
    if side is SENDER:
        return {(peer.address,): peer for peer in peers}
    named = [peer for peer in peers if peer.heard_s is not None]
    return {(peer.name,): peer for peer in sorted(named, key=attrgetter("heard_s"), reverse=True)}


def _family(
    side: Side, metric: Metric, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Any]]
) -> Family:
    family = metric.family(side.prefix + metric.name, metric.help, labels=labels)
    for values, subject in rows:
        value = metric.value(subject)
        if value is not None:
            family.add_metric(values, value)
    return family


def _states(side: Side, channels: Iterable[tuple[Sequence[str], ChannelStatistics]]) -> Family:
    text = "1 for the state that the channel is in, 0 for the others."
    family = GAUGE(f"{side.prefix}state", text, labels=[*side.channel_labels, "state"])
    for labels, channel in channels:
        for state in side.states:
            family.add_metric([*labels, state], channel.state == state)
    return family


def _since(side: Side, channels: Iterable[tuple[Sequence[str], ChannelStatistics]], epoch: float) -> Family:
    text = "When the state began, in seconds since 1970."
    family = GAUGE(f"{side.prefix}state_timestamp_seconds", text, labels=side.channel_labels)
    for labels, channel in channels:
        # The two clocks are read one after the other: what is below that would change from scrape to scrape.
        family.add_metric(labels, round(epoch + channel.since, 2))
    return family
