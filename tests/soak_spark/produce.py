"""A sender that listens, in a process of its own, which may be killed: it goes on with what is on disk."""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop

from netchannel import ChannelClosed, RetainPolicy, SenderServer

from .rows import ROWS, SCHEMA, batch


async def fill(sender: SenderServer, channel: str, directory: str, rows: int) -> None:
    """Keep ``rows`` rows on a channel, and leave when Spark has acknowledged all of them."""
    policy = RetainPolicy(max_bytes=16 << 20, directory=directory, lease_s=3.0)
    outbox = sender.retain_channel(channel, policy, schema=SCHEMA)
    try:
        while (first := outbox.position) < rows // ROWS:
            await outbox.send_many([batch(n) for n in range(first, min(first + 50, rows // ROWS))])
    except ChannelClosed:
        pass  # by the process before this one
    await outbox.close()


async def produce(directory: str, address: str, rows: str, *channels: str) -> None:
    """All channels; ends when all of them were read."""
    async with SenderServer(address) as sender, asyncio.TaskGroup() as group:
        for channel in channels:
            group.create_task(fill(sender, channel, directory, int(rows)))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(produce(*sys.argv[1:]))
