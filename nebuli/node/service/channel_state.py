"""The state of a worker's channels, as its gRPC service reports it."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING

from nebuli.rpc import worker_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from netchannel import ChannelStatistics, ReceiverServerStatistics, SenderServerStatistics

__all__ = ["channels"]


def channels(
    senders: Iterable[SenderServerStatistics],
    receivers: Iterable[ReceiverServerStatistics],
    prefix: str,
) -> wire.ChannelsReply:
    """The channels whose ids begin with ``prefix``: what is sent, then what is received."""
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
    counters = {field.name: getattr(each, field.name) for field in fields(each) if field.name != "since"}
    return wire.Channel(id=id_, side=side, to=to, **counters)
