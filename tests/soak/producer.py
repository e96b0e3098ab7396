"""A producer in a process of its own, which may be killed and started again: it goes on with its buffer on disk."""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop

from netchannel import BufferPolicy, ChannelClosed, SenderServer

from .faults import timing
from .messages import body


async def produce(directory: str, address: str, channel_id: str, latency_s: str) -> None:
    """Send until stdin is readable, then close. Says on stdout on which stream and where it is."""
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, told_to_stop.set)
    policy = BufferPolicy(max_bytes=4 << 20, directory=directory, max_disk_bytes=64 << 20)
    async with SenderServer(timing=timing(float(latency_s))) as sender:
        outbox = sender.register_channel(channel_id, to=address, codec="bytes", buffer=policy)
        say(f"stream {outbox.stream}")
        try:
            while not told_to_stop.is_set():
                await outbox.send_many([body(outbox.position + n) for n in range(20)])
                say(f"sent {outbox.position}")
        except ChannelClosed:
            pass  # by the process before this one
        await outbox.close()
        say(f"closed {outbox.position}")


def say(what: str) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("netchannel").setLevel(logging.CRITICAL)
    uvloop.run(produce(*sys.argv[1:5]))
