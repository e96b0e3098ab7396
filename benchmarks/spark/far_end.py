"""The other end of a channel, in a process of its own: what Spark reads is kept here, what it writes arrives here."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable

import netchannel
from benchmarks.work import Result, Work

from .data import batch

MOST = 16 << 30


async def keep(work: Work, ready: Callable[[str], None]) -> Result:
    """Channels c0, c1, ... of prebuilt batches, to be read any number of times."""
    options = work.options
    prebuilt = batch(options["kind"], options["rows"])
    count = options["batches"] // options["channels"]
    async with netchannel.SenderServer("127.0.0.1:0") as sender:
        for number in range(options["channels"]):
            outbox = sender.retain_channel(f"c{number}", netchannel.RetainPolicy(max_bytes=MOST))
            await outbox.send_many(prebuilt for _ in range(count))
        ready(sender.address)
        await asyncio.Event().wait()
    return Result()


async def produce(work: Work, ready: Callable[[str], None]) -> Result:
    """One channel that gets a batch every few milliseconds, for as long as Spark reads."""
    options = work.options
    prebuilt = batch(options["kind"], options["rows"])
    async with netchannel.SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("c0", netchannel.RetainPolicy(max_bytes=MOST))
        await outbox.send(prebuilt)
        ready(sender.address)
        while True:
            await outbox.send(prebuilt)
            await asyncio.sleep(options["every_s"])
    return Result()


async def consume(work: Work, ready: Callable[[str], None]) -> Result:
    """Channels that take groups, or plain streams, and whose consumers look at every batch."""
    options = work.options
    with tempfile.TemporaryDirectory() as directory:
        async with netchannel.ReceiverServer("127.0.0.1:0") as receiver, asyncio.TaskGroup() as group:
            for number in range(options["channels"]):
                staged = f"staged{number}"
                policy = netchannel.StagingPolicy(directory, max_staged_bytes=MOST)
                group.create_task(_drain(receiver.register_staged_channel(staged, policy)))
                group.create_task(_drain_streams(receiver, f"plain{number}"))
            ready(receiver.address)
            await asyncio.Event().wait()
    return Result()


async def _drain(inbox: netchannel.ReceiverChannel) -> None:
    async for each in inbox:
        assert each.num_rows


async def _drain_streams(receiver: netchannel.ReceiverServer, channel: str) -> None:
    any_stream = netchannel.FaultPolicy(accept_new_stream=True)  # each query has its own, and leaves it open
    while True:
        await _drain(receiver.register_channel(channel, fault=any_stream))
