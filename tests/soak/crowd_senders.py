"""Some senders of a crowd, in one process: servers of their own, with a control connection and channels each.

Lines on stdin tell it what to do; it answers each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack

import uvloop

from netchannel import SenderChannel, SenderServer

from .crowd_receiver import BODY, channel_id, say
from .resources import measure


async def send(address: str, senders: str, first: str, channels: str) -> None:
    """Channels from number ``first`` on, dealt out to the senders, until told to close them."""
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(SenderServer()) for _ in range(int(senders))]
        outboxes: dict[int, SenderChannel] = {}
        say(measure()._asdict())
        while what := (await stdin.readline()).decode().split():
            match what:
                case ["open"]:
                    for n, index in enumerate(range(int(first), int(first) + int(channels))):
                        server = servers[n % len(servers)]
                        outboxes[index] = server.register_channel(
                            channel_id(index), to=address, codec="bytes"
                        )
                    say({"opened": len(outboxes)})
                case ["send", times]:
                    for _ in range(int(times)):
                        for index, outbox in outboxes.items():
                            await outbox.send(BODY.pack(index, outbox.position))
                    say({"sent": int(times) * len(outboxes)})
                case ["report"]:
                    counted = [outbox.statistics() for outbox in outboxes.values()]
                    connections = sum(server.statistics().connections for server in servers)
                    say(
                        {
                            "reconnects": [each.reconnects for each in counted],
                            "unacknowledged": sum(each.buffered_messages for each in counted),
                            "connections": connections,
                            **measure()._asdict(),
                        }
                    )
                case ["close"]:
                    await asyncio.gather(*(outbox.close() for outbox in outboxes.values()))
                    say({"closed": [outbox.position for outbox in outboxes.values()]})
                    outboxes.clear()


if __name__ == "__main__":
    logging.getLogger("netchannel").setLevel(logging.ERROR)
    uvloop.run(send(*sys.argv[1:5]))
