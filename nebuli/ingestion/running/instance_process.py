"""``python -m nebuli.ingestion.running.instance_process SOURCE INSTANCE``: an instance in a process of its own.

Where the store is comes on standard input, on one line, as it may have a password. The end of standard input ends it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.ingestion.errors import IngestionError
from nebuli.ingestion.source_client import Sources
from nebuli.log_output import log_to_stderr
from nebuli.store.errors import StorageError
from nebuli.store.store_url import StoreUrl
from nebuli.without_pandas import hide_pandas

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace

ENDED = 128 + signal.SIGTERM
"""The exit code of one that was told to end, as shells have it."""


def order(place: StorePlace) -> bytes:
    """What such a process is told first."""
    told = [str(place)] if isinstance(place, Path) else [place.server, place.schema, place.blobs]
    return json.dumps(told).encode() + b"\n"


def place_of(told: bytes) -> StorePlace:
    """The place that an `order` tells."""
    parts = json.loads(told)
    return Path(*parts) if len(parts) == 1 else StoreUrl(*parts)


async def _main(source: str, instance: str) -> bool:
    """Whether the source was dropped."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    ingesting = asyncio.create_task(_ingest(place_of(await reader.readline()), source, instance))
    orphaned = asyncio.create_task(reader.read())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ingesting.cancel)
    await asyncio.wait([ingesting, orphaned], return_when=asyncio.FIRST_COMPLETED)
    ingesting.cancel()
    orphaned.cancel()
    await asyncio.gather(orphaned, return_exceptions=True)
    try:
        await ingesting
    except asyncio.CancelledError:
        return False
    return True


async def _ingest(place: StorePlace, source: str, instance: str) -> None:
    async with Sources(place if isinstance(place, StoreUrl) else str(place)) as sources:
        await sources.ingest(source, instance=instance)


def main() -> int:
    """Run it; the exit code, which is 0 if the source was dropped."""
    log_to_stderr("%(asctime)s %(message)s")
    hide_pandas()
    try:
        return 0 if asyncio.run(_main(*sys.argv[1:])) else ENDED
    except (IngestionError, StorageError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:
        logging.getLogger("nebuli.ingestion").exception("source %s, instance %s", *sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a reader's thread may be waiting for what does not come
