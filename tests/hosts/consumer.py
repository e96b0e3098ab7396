"""A consumer on a host: ``... FOLDER LISTEN SIZE CHANNEL...``.

The numbers that it has read of a channel stand in a file, line by line behind their stream, and are acknowledged once
they are there; a successor goes on behind them. It ends with its last channel.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import uvloop

from netchannel import EndOfChannel, Position, ReceiverServer
from tests.hosts.messages import TIMING, body


async def consume(server: ReceiverServer, id_: str, file: Path, size: int) -> None:
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    resume_from = Position(lines[-1].split()[0], len(lines)) if lines else None
    inbox = server.register_channel(id_, codec="bytes", ack="explicit", resume_from=resume_from)
    with file.open("ab", buffering=0) as out:
        while True:
            try:
                message = await inbox.recv_message()
            except EndOfChannel:
                return
            number = int.from_bytes(message.batch[:8], "little")
            assert bytes(message.batch) == body(number, size), (
                f"{id_}: message {message.sequence} was changed"
            )
            assert inbox.position is not None
            out.write(b"%s %d\n" % (inbox.position.stream.encode(), number))
            await inbox.ack(message.sequence + 1)


async def main(folder: str, listen: str, size: str, *channels: str) -> None:
    async with ReceiverServer(listen, timing=TIMING) as server:
        await asyncio.gather(*(consume(server, id_, Path(folder, id_), int(size)) for id_ in channels))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    uvloop.run(main(*sys.argv[1:]))
