"""A process of a node that consumes channels: ``... FOLDER LISTEN members|node SOCKET ID...``.

What it has read of a channel stands in a file, line by line, and is acknowledged once it is there; a successor goes on
behind it. It prints its port, and is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import netchannel
from netchannel import Position, ReceiverServer, Timing

TIMING = Timing(heartbeat_s=0.2, dead_after_s=2.0, backoff_limit_s=0.2)


async def consume(server: ReceiverServer, channel_id: str, file: Path) -> None:
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    resume_from = Position(lines[-1].split()[0], len(lines)) if lines else None
    inbox = server.register_channel(channel_id, codec="bytes", ack="explicit", resume_from=resume_from)
    with file.open("a", encoding="utf-8") as out:
        while True:
            try:
                message = await inbox.recv_message()
            except netchannel.EndOfChannel:
                return
            position = inbox.position
            assert position is not None
            out.write(f"{position.stream} {bytes(message.batch).decode()}\n")
            out.flush()
            os.fsync(out.fileno())
            await inbox.ack(message.sequence + 1)


async def main(folder: str, listen: str, role: str, socket: str, *channels: str) -> None:
    server = ReceiverServer(listen, timing=TIMING, **{role: socket})  # type: ignore[arg-type] - by name
    async with server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        await asyncio.gather(*(consume(server, channel, Path(folder, channel)) for channel in channels))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
