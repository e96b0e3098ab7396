"""netchannel, as its users use it: one channel, acknowledged."""

from __future__ import annotations

from collections.abc import Callable

import netchannel
from benchmarks.work import Pace, Result, Watch, Work


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Iterate over a channel until it ends."""
    async with netchannel.ReceiverServer(work.options.get("listen", "127.0.0.1:0")) as receiver:
        inbox = receiver.register_channel("c", codec="arrow" if work.arrow else "bytes")
        ready(receiver.address)
        watch = Watch(work)
        look = watch.look()
        async for message in inbox:
            look(message)
    return watch.result()


async def send(work: Work, address: str) -> Result:
    """Await `send` for each, and the end's acknowledgement."""
    congestion_control = None if work.options.get("same_sockets") else "cubic"
    async with netchannel.SenderServer(congestion_control=congestion_control) as sender:
        outbox = sender.register_channel("c", to=address, codec="arrow" if work.arrow else "bytes")
        pace = Pace(work)
        for messages in pace.rounds():
            for message in messages:
                await outbox.send(message)
        await outbox.close()
    return pace.result()
