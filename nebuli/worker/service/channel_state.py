"""How the channels of a worker are, as its gRPC service tells it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nebuli.rpc import worker_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from netchannel import ChannelStatistics, ServerStatistics

__all__ = ["channels"]

_NUMBERS = (
    "sent",
    "received",
    "acknowledged",
    "bytes",
    "buffered_messages",
    "buffered_bytes",
    "disk_bytes",
    "in_flight",
    "reconnects",
    "dropped",
    "starved",
)


def channels(
    senders: Iterable[ServerStatistics[tuple[str, str]]],
    receivers: Iterable[ServerStatistics[str]],
    prefix: str,
) -> wire.ChannelsReply:
    """Those whose ids begin with ``prefix``: what is sent, then what is received."""
    found = [
        _message(id_, wire.Channel.SIDE_SENDER, to, each)
        for server in senders
        for (id_, to), each in server.channels.items()
        if id_.startswith(prefix)
    ]
    found += [
        _message(id_, wire.Channel.SIDE_RECEIVER, "", each)
        for server in receivers
        for id_, each in server.channels.items()
        if id_.startswith(prefix)
    ]
    return wire.ChannelsReply(at=time.monotonic_ns(), channels=found)


def _message(id_: str, side: wire.Channel.Side, to: str, each: ChannelStatistics) -> wire.Channel:
    numbers = {name: getattr(each, name) for name in _NUMBERS}
    return wire.Channel(id=id_, side=side, to=to, state=each.state, **numbers)
