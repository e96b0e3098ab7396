"""A process with services: ``... LISTEN alone|members|node SOCKET ID...``. Each answers with its process id.

It prints its address, and is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys

from netchannel import ReceiverServer

from .consumer import TIMING


async def answer(body: bytes) -> bytes:
    """After a while, so that a kill finds some that are not answered."""
    await asyncio.sleep(0.01)
    return b"%d %b" % (os.getpid(), body)


async def main(listen: str, role: str, socket: str, *services: str) -> None:
    settings = {} if role == "alone" else {role: socket}
    async with ReceiverServer(listen, timing=TIMING, **settings) as server:  # type: ignore[arg-type] - by name
        for service in services:
            server.register_service(service, answer)
        sys.stdout.write(f"{os.getpid()} {server.address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
