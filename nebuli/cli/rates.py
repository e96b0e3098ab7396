"""Channels between two observations: both ends of each in one row, with rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.rpc import worker_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Row", "rows"]


@dataclass(frozen=True, slots=True)
class Row:
    """A channel; ``start`` and ``end`` are its nodes, None if the worker does not know it.

    Rates are those of its sender, or of its receiver if there is no sender. ``lag`` is the number of messages that were
    sent and not yet read.
    """

    channel: str
    start: str | None
    end: str | None
    state: str
    messages_per_s: float | None
    bytes_per_s: float | None
    buffered_messages: int
    buffered_bytes: int
    disk_bytes: int
    in_flight: int
    lag: int
    reconnects: int
    dropped: int
    starved: bool


@dataclass(frozen=True, slots=True)
class _End:
    node: str
    at_s: float
    channel: wire.Channel


def rows(now: Mapping[str, wire.ChannelsReply], before: Mapping[str, wire.ChannelsReply]) -> list[Row]:
    """Return the channels in two sets of workers' replies by node, in the order of their ids.

    Rates are those since ``before``, by each worker's own clock.
    """
    senders, receivers = _ends(now)
    earlier_senders, earlier_receivers = _ends(before)
    return [
        _row(
            id_,
            senders.get(id_),
            receivers.get(id_),
            earlier_senders.get(id_) if id_ in senders else earlier_receivers.get(id_),
        )
        for id_ in sorted({*senders, *receivers})
    ]


def _ends(look: Mapping[str, wire.ChannelsReply]) -> tuple[dict[str, _End], dict[str, _End]]:
    senders: dict[str, _End] = {}
    receivers: dict[str, _End] = {}
    for node, reply in look.items():
        for channel in reply.channels:
            ends = senders if channel.side == wire.Channel.SIDE_SENDER else receivers
            ends[channel.id] = _End(node, reply.at / 1e9, channel)
    return senders, receivers


def _row(id_: str, sender: _End | None, receiver: _End | None, earlier: _End | None) -> Row:
    shown = sender or receiver
    assert shown is not None
    channel = shown.channel
    unread = 0 if receiver is None else receiver.channel.buffered_messages
    on_the_way = 0 if sender is None else channel.sent - channel.received
    messages, size = _rates(shown, earlier, sends=sender is not None)
    return Row(
        channel=id_,
        start=None if sender is None else sender.node,
        end=None if receiver is None else receiver.node,
        state=channel.state,
        messages_per_s=messages,
        bytes_per_s=size,
        buffered_messages=channel.buffered_messages,
        buffered_bytes=channel.buffered_bytes,
        disk_bytes=channel.disk_bytes,
        in_flight=channel.in_flight,
        lag=on_the_way + unread,
        reconnects=channel.reconnects,
        dropped=channel.dropped,
        starved=channel.starved,
    )


def _rates(now: _End, before: _End | None, *, sends: bool) -> tuple[float | None, float | None]:
    # The counts of another life of the worker or the channel cannot be compared.
    if before is None or before.node != now.node or before.at_s >= now.at_s:
        return None, None
    took = now.at_s - before.at_s
    count = "sent" if sends else "received"
    messages = getattr(now.channel, count) - getattr(before.channel, count)
    size = now.channel.bytes - before.channel.bytes
    return (None, None) if messages < 0 or size < 0 else (messages / took, size / took)
