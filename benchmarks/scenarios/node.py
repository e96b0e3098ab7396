"""A node of several processes: all senders dial the address of the first one."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import netchannel

LOOKS_EVERY_S = 0.01


@asynccontextmanager
async def process_of_a_node() -> AsyncIterator[tuple[netchannel.ReceiverServer, str]]:
    """The first process of this run, or a member of its node; and the address that senders dial."""
    folder = Path(tempfile.gettempdir()) / f"netchannel-node-{os.getppid()}"
    socket, said = f"unix:{folder}/node.sock", folder / "address"
    try:
        folder.mkdir()
    except FileExistsError:
        while not said.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(LOOKS_EVERY_S)
        async with netchannel.ReceiverServer(node=socket) as member:
            yield member, said.read_text("utf-8")
        return
    try:
        async with netchannel.ReceiverServer(members=socket) as first:
            written = folder / "written"
            written.write_text(first.address, "utf-8")
            written.rename(said)
            yield first, first.address
    finally:
        shutil.rmtree(folder)
