"""A channel between two workers that carries nothing but what it is measured by."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import netchannel
from nebuli.node.data_port import member
from nebuli.rpc import worker_pb2 as wire
from netchannel.address import parse_address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nebuli.node.hosted_fragment import Host

__all__ = ["expect", "probe"]

_REACH_S = 3.0
_OPEN_S = 5.0
_ROUND_TRIPS = 20
_SMALL, _LARGE = bytes(64), bytes(256 << 10)
_BUFFER = netchannel.BufferPolicy(max_bytes=4 << 20)


async def expect(host: Host, channel_id: str) -> AsyncGenerator[None, None]:
    """Receive and drop messages, for as long as this is iterated over; the first turn reports that it is ready.

    At a port of its own, as the process of a fragment: senders have to reach such ports, too.
    """
    async with member(host.ports, host.node, host.trust) as receiver:
        channel = receiver.register_channel(channel_id, codec="bytes", buffer=_BUFFER)
        try:
            yield
            with suppress(netchannel.EndOfChannel, netchannel.ChannelFailed):
                while True:
                    await channel.recv_message()
        finally:
            await channel.close("the probe is over")


async def probe(sender: netchannel.SenderServer, request: wire.ProbeRequest) -> wire.ProbeReply:
    """Open a channel, and measure. Errors are in the reply."""
    reply = wire.ProbeReply()
    try:
        await _reach(request.to)
        reply.reached = True
        await _measure(sender, request, reply)
    except TimeoutError:
        where, waited = (
            ("opened and measured", _OPEN_S + request.send_ms / 1000)
            if reply.reached
            else ("reached", _REACH_S)
        )
        reply.error = f"{request.to} could not be {where} within {waited:g} s"
    except OSError as error:
        reply.error = f"{request.to}: {os.strerror(error.errno) if error.errno else error}"
    except (netchannel.NetChannelError, ValueError) as error:
        reply.error = str(error)
    return reply


async def _reach(to: str) -> None:
    address = parse_address(to)
    async with asyncio.timeout(_REACH_S):
        _, writer = await asyncio.open_connection(address.host, address.port)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _measure(
    sender: netchannel.SenderServer, request: wire.ProbeRequest, reply: wire.ProbeReply
) -> None:
    began = time.monotonic()
    channel = sender.register_channel(
        request.channel,
        to=request.to,
        codec="bytes",
        buffer=_BUFFER,
        fault=netchannel.FaultPolicy(retry=_OPEN_S),
    )
    try:
        async with asyncio.timeout(_OPEN_S + request.send_ms / 1000):
            await _round_trip(channel)
            reply.opened_us = round((time.monotonic() - began) * 1e6)
            trips = [await _round_trip(channel) for _ in range(_ROUND_TRIPS)]
            reply.round_trip_min_us = round(min(trips) * 1e6)
            reply.round_trip_us = round(statistics.median(trips) * 1e6)
            reply.throughput = round(await _throughput(channel, request.send_ms / 1000))
    finally:
        # The other side has all of it or wants none: nothing is waited for.
        with suppress(netchannel.NetChannelError):
            await channel.close(grace=1.0)


async def _round_trip(channel: netchannel.SenderChannel) -> float:
    began = time.monotonic()
    await channel.send(_SMALL)
    await channel.flush()
    return time.monotonic() - began


async def _throughput(channel: netchannel.SenderChannel, seconds: float) -> float:
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        await channel.send(_LARGE)
        sent += len(_LARGE)
    await channel.flush()
    return sent / (time.monotonic() - began)
