"""``python -m nebuli.ingestion.running.instance_process SOURCE INSTANCE``: an instance in a process of its own.

Where the store is comes on standard input, on one line, as it may have a password, with the lock that the process holds
until its end. It continues when the supervisor that has started it is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.ingestion.errors import IngestionError, SourceRefused
from nebuli.ingestion.source_client import Sources
from nebuli.log_output import log_to_stderr
from nebuli.store import Store
from nebuli.store.errors import StorageError
from nebuli.store.store_url import StoreUrl
from nebuli.without_pandas import hide_pandas

from .process_lock import ProcessLock

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace

ENDED = 128 + signal.SIGTERM
"""The exit code of a process ended by SIGTERM, as in shells."""
TAKEN = 75
"""The exit code of one in whose place there is another process; that of a failure that passes (sysexits.h)."""
_LOOK_S = 5.0
"""How often is looked whether its store is still there."""
_log = logging.getLogger("nebuli.ingestion")


def order(place: StorePlace, lock: ProcessLock) -> bytes:
    """Return the first line for such a process."""
    parts = [str(place.absolute())] if isinstance(place, Path) else [place.server, place.schema, place.blobs]
    return json.dumps([str(lock.path), lock.runs, *parts]).encode() + b"\n"


def read_order(told: bytes) -> tuple[StorePlace, ProcessLock]:
    """Return the store and the lock in an `order`."""
    path, runs, *parts = json.loads(told)
    return Path(*parts) if len(parts) == 1 else StoreUrl(*parts), ProcessLock(Path(path), runs)


async def _main(place: StorePlace, source: str, instance: str) -> bool:
    """Return true if the source was dropped."""
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(_ingest(place, source, instance))]
    if isinstance(place, Path):
        tasks.append(asyncio.create_task(_deleted(place)))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tasks[0].cancel)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    try:
        await tasks[0]
    except asyncio.CancelledError:
        return False
    return True


async def _deleted(store: Path) -> None:
    """Wait until the store is deleted: no supervisor needs to be there that could notice it."""
    while True:
        if not await asyncio.to_thread(Store.is_at, store):
            break
        await asyncio.sleep(_LOOK_S)
    _log.warning("an instance ends, because store %s was deleted", store)


async def _ingest(place: StorePlace, source: str, instance: str) -> None:
    async with Sources(place if isinstance(place, StoreUrl) else str(place)) as sources:
        await sources.ingest(source, instance=instance)


def main() -> int:
    """Run it; the exit code, which is 0 if the source was dropped."""
    log_to_stderr("%(asctime)s %(message)s")
    hide_pandas()
    told = sys.stdin.buffer.readline()
    if not told:  # its supervisor was killed before it could send it
        return ENDED
    place, lock = read_order(told)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock.held(supervised=True))
        except SourceRefused:
            return TAKEN
        try:
            return 0 if asyncio.run(_main(place, *sys.argv[1:])) else ENDED
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
