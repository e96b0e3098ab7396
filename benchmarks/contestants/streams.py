"""asyncio's streams on uvloop, with a length before each message: what one writes at first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.work import Pace, Result, Watch, Work


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Read length and message until the end."""
    watch = Watch(work)
    look = watch.look()
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "little")
                look(await reader.readexactly(length))
        except asyncio.IncompleteReadError:
            writer.close()
            done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    ready(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await done.wait()
    server.close()
    return watch.result()


async def send(work: Work, address: str) -> Result:
    """Write both, and drain."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    pace = Pace(work)
    length = work.size.to_bytes(4, "little")
    for messages in pace.rounds():
        for message in messages:
            writer.writelines((length, message))
            await writer.drain()
    writer.write_eof()
    await reader.read()
    writer.close()
    return pace.result()
