"""asyncio's streams on uvloop, with a length before each message: what one writes at first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.measuring import pace, watch
from benchmarks.work import Result, Work


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Read length and message until the end."""
    watching = watch(work)
    look = watching.look()
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
    return watching.result()  # type: ignore[no-any-return]


async def send(work: Work, address: str) -> Result:
    """Write both, and drain."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    pacing = pace(work)
    length = work.size.to_bytes(4, "little")
    async for messages in pacing:
        for message in messages:
            writer.writelines((length, message))
            await writer.drain()
    writer.write_eof()
    await reader.read()
    writer.close()
    return pacing.result()  # type: ignore[no-any-return]
