"""A process that keeps a channel: ``... receiver|sender ADDRESS DIRECTORY|- COUNT``.

As a receiver it keeps what comes; as a sender it makes COUNT messages of its own. It prints its address, and is killed,
or ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from netchannel import ReceiverServer, RetainPolicy, SenderServer, Timing

TIMING = Timing(heartbeat_s=0.2, dead_after_s=2.0, backoff_limit_s=0.1)


def body(number: int) -> bytes:
    """Message ``number``: sizes from nothing to some MiB, so that all kinds of frames are there."""
    sizes = (0, 3, 100, 1500, 9000, 40_000, 150_000)
    size = 3 << 20 if number % 257 == 256 else sizes[number * 7 % 11 % 7]
    return (number.to_bytes(8, "little") * (size // 8 + 1))[: max(size, 8)]


async def main(role: str, address: str, directory: str, count: str) -> None:
    policy = RetainPolicy(directory=None if directory == "-" else directory)
    server: Any = (ReceiverServer if role == "receiver" else SenderServer)(address, timing=TIMING)
    async with server:
        channel = server.retain_channel("c", policy, codec="bytes")
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        if role == "sender":
            for number in range(channel.position, int(count)):
                await channel.send(body(number))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
