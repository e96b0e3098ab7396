"""Several channels at once, each with a producer and a consumer of its own, which share the memory of one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import netchannel
from benchmarks.contestants.ours import congestion_control
from benchmarks.measuring import pace, watch
from benchmarks.work import Result, Work

from .node import process_of_a_node

MIB = 1 << 20
SENDER_BYTES, RECEIVER_BYTES = 64 * MIB, 8 * MIB
LEAST_MESSAGES = 4


def shared(work: Work, max_bytes: int) -> netchannel.BufferPolicy:
    """One channel's part of what one channel alone would have."""
    part = max_bytes // int(work.options["channels"])
    least = work.options.get("least_messages", LEAST_MESSAGES)
    return netchannel.BufferPolicy(max_bytes=max(part, least * work.size))


@asynccontextmanager
async def alone() -> AsyncIterator[tuple[netchannel.ReceiverServer, str]]:
    """A receiver with an address of its own."""
    async with netchannel.ReceiverServer() as receiver:
        yield receiver, receiver.address


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """A task per channel; its sender is told the address, and the names of the channels."""
    watching = watch(work)

    async def consume(inbox: netchannel.ReceiverChannel) -> None:
        look = watching.look()
        async for message in inbox:
            look(message)

    server = process_of_a_node() if work.options.get("node") else alone()
    async with server as (receiver, address), asyncio.TaskGroup() as tasks:
        buffer, mine = shared(work, RECEIVER_BYTES), os.getpid()
        for number in range(work.options["channels"]):
            inbox = receiver.register_channel(f"{mine}-{number}", codec=work.codec, buffer=buffer)
            tasks.create_task(consume(inbox))
        ready(f"{address} {mine}")
    return watching.result()  # type: ignore[no-any-return]


async def send(work: Work, address: str) -> Result:
    """A task per channel, once all are open."""
    address, _, theirs = address.partition(" ")
    pacing = pace(work)

    async def produce(outbox: netchannel.SenderChannel) -> None:
        async for messages in pacing:
            for message in messages:
                await outbox.send(message)
        await outbox.close()

    async with netchannel.SenderServer(congestion_control=congestion_control(work)) as sender:
        buffer = shared(work, SENDER_BYTES)
        outboxes = [
            sender.register_channel(f"{theirs}-{number}", to=address, codec=work.codec, buffer=buffer)
            for number in range(work.options["channels"])
        ]
        await asyncio.gather(*(outbox.attached() for outbox in outboxes))
        async with asyncio.TaskGroup() as tasks:
            for outbox in outboxes:
                tasks.create_task(produce(outbox))
    return pacing.result()  # type: ignore[no-any-return]
