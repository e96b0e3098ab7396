"""`Supervisor`: keeps as many instances of a source as it is to have, each in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nebuli.ingestion.errors import SourceUnknown
from nebuli.processes import send_signal, signal_name
from nebuli.store import Store
from nebuli.store.errors import StorageError

from .instance_process import order

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from nebuli.ingestion.source_client import Sources
    from nebuli.store.store_url import StorePlace

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
"""Between the end of an instance and its next start; one that has lived for the longest begins with the first again."""
_LOOK_S = 5.0
"""How often is looked at the latest how many there are to be; a change is noticed at once."""
_STOP_S = 10.0
"""How long an instance has to come to its end before it is killed."""
_AGAIN_S = 1.0
WhyEnded = Literal["dropped", "scaled to 0", "store deleted"]
_log = logging.getLogger("nebuli.ingestion")


class Supervisor:
    """One of a source's, on a host. Its instances are named 1, 2, and so on, and end with it, whatever ends it."""

    def __init__(self, sources: Sources, place: StorePlace, source: str) -> None:
        """``sources`` is entered, and ``place`` where their store is."""
        self._sources = sources
        self._place = place
        self._source = source
        self._why: WhyEnded = "scaled to 0"
        """Why there are to be none, while there are."""

    async def run(self) -> WhyEnded:
        """Keep instances, until the source is dropped, or is to have none, or this is cancelled; all have ended then.

        The same where the folder of the store was deleted. Gives which of these it was. What becomes of a source while
        the store does not answer is waited for. Raises SourceUnknown if it is not there.
        """
        await self._sources.entry(self._source)
        while await self._wanted():  # also where it is to have some again since the last have ended
            await self._keep_all()
        return self._why

    async def _keep_all(self) -> None:
        """Until there are to be none."""
        kept: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            while wanted := await self._wanted():
                for each in kept[wanted:]:
                    each.cancel()
                await asyncio.gather(*kept[wanted:], return_exceptions=True)
                del kept[wanted:]
                kept += [group.create_task(self._keep(n + 1)) for n in range(len(kept), wanted)]
                with suppress(StorageError):
                    await self._sources.changed(_LOOK_S)
            for each in kept:
                each.cancel()

    async def _wanted(self) -> int:
        """How many instances there are to be."""
        warned = False
        while True:
            if isinstance(self._place, Path) and not await asyncio.to_thread(Store.is_at, self._place):
                _log.warning("source %s: its supervisor ends, as %s was deleted", self._source, self._place)
                self._why = "store deleted"
                return 0
            try:
                entry = await self._sources.entry(self._source)
            except SourceUnknown:
                self._why = "dropped"
                return 0
            except StorageError as error:
                if not warned:
                    _log.warning("source %s: its supervisor goes on as before: %s", self._source, error)
                    warned = True
                await asyncio.sleep(_AGAIN_S)
            else:
                self._why = "dropped" if entry.phase == "dropping" else "scaled to 0"
                return 0 if entry.phase == "dropping" else entry.replicas

    async def _keep(self, number: int) -> None:
        """Have one, again and again."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            how = await self._run(number)
            if time.monotonic() - began >= _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            if how is not None:
                _log.warning(
                    "source %s: instance %d %s; it is started again in %g s",
                    *(self._source, number, how, pause_s),
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _run(self, number: int) -> str | None:
        """One process, from its start to its end; how it came to that, unless its source was dropped."""
        try:
            process = await asyncio.create_subprocess_exec(
                # -P, because the working directory is the user's, and its files are no modules of ours.
                *(sys.executable, "-P", "-m", "nebuli.ingestion.running.instance_process"),
                *(self._source, str(number)),
                stdin=PIPE,  # its end tells the instance that this process is gone
                stdout=DEVNULL,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        except OSError as error:
            return f"could not be started: {error}"
        try:
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(order(self._place))
                await process.stdin.drain()
            code = await process.wait()
        finally:
            await _end(process)
        if code == 0:
            return None
        return f"was killed by {signal_name(-code)}" if code < 0 else f"has ended with exit code {code}"


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    send_signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        send_signal(process, signal.SIGKILL)
        await process.wait()
