"""`Supervisor`: keeps as many instances of each source of a store as it is to have, each in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nebuli.ingestion.entries import SupervisorStatus
from nebuli.store import Store
from nebuli.store.collections.clock import now_ms
from nebuli.store.errors import StorageError

from .supervised_process import SupervisedProcess, end_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nebuli.ingestion.entries import Entry
    from nebuli.ingestion.source_client import Sources
    from nebuli.store.store_url import StorePlace

    from .process_lock import LockHolder, ProcessLock
    from .supervisor_files import SupervisorFiles

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
"""Between the end of an instance and its next start; one that has lived for the longest begins with the first again."""
_LOOK_S = 5.0
"""How often is looked at the latest how many there are to be; a change is noticed at once."""
_REPORT_S = 10.0
"""How often it reports."""
_AGAIN_S = 1.0
_STEP_S = 0.05
WhyEnded = Literal["idle", "store deleted"]
_Key = tuple[str, str]
"""A source, and an instance of it."""
_log = logging.getLogger("nebuli.ingestion")


class Supervisor:
    """One of a store's, on a host. A source's instances are named 1, 2, and so on.

    Cancelled, it ends them. Killed, it leaves them, and the next one adopts them.
    """

    def __init__(self, sources: Sources, place: StorePlace, files: SupervisorFiles) -> None:
        """``sources`` is entered, ``place`` where their store is; the lock among the ``files`` is held."""
        self._sources = sources
        self._place = place
        self._files = files
        self._kept: dict[_Key, asyncio.Task[None]] = {}

    async def run(self, *, until_idle: bool = False) -> WhyEnded:
        """Keep instances, until this is cancelled, or the store's folder was deleted, or ``until_idle``: none is to be.

        All have ended then. While the store does not answer, they continue as before.
        """
        async with self._reported(), asyncio.TaskGroup() as group:
            try:
                while (entries := await self._entries()) is not None:
                    wanted = {
                        (name, str(number + 1))
                        for name, entry in entries.items()
                        for number in range(_wanted(entry))
                    }
                    await self._end({key for key in self._kept if key not in wanted})
                    await self._end_strays(wanted)
                    self._forget(entries)
                    if until_idle and not wanted:
                        return "idle"
                    for key in sorted(wanted - self._kept.keys()):
                        self._kept[key] = group.create_task(self._keep(key))
                    with suppress(StorageError):
                        await self._sources.changed(_LOOK_S)
            finally:
                await self._end(set(self._kept))
                await self._end_strays(set())  # those that it has not yet adopted
        _log.warning("the supervisor ends, because store %s was deleted", self._place)
        return "store deleted"

    async def _entries(self) -> Mapping[str, Entry] | None:
        """The sources that there are; None: their store was deleted."""
        warned = False
        while not isinstance(self._place, Path) or await asyncio.to_thread(Store.is_at, self._place):
            try:
                return await self._sources.entries()
            except StorageError as error:
                if not warned:
                    _log.warning("the supervisor continues as before: %s", error)
                    warned = True
                await asyncio.sleep(_AGAIN_S)
        return None

    async def _end(self, keys: set[_Key]) -> None:
        """End instances that it keeps."""
        tasks = [self._kept.pop(key) for key in keys]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_strays(self, wanted: set[_Key]) -> None:
        """End instances of a former supervisor that are not to be any more."""
        try:
            for source, name, holder in self._files.supervised():
                if (source, name) not in wanted:
                    await end_process(holder)
        except OSError as error:
            _log.warning("cannot search for the instances of a former supervisor: %s", error)

    def _forget(self, entries: Mapping[str, Entry]) -> None:
        """Remove the files of sources that were dropped."""
        for each in self._files.sources() - entries.keys():
            with suppress(OSError):
                self._files.remove(each)

    async def _keep(self, key: _Key) -> None:
        """Have one, again and again."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            how = await self._run(*key)
            if time.monotonic() - began >= _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            if how is not None:
                _log.warning("source %s: instance %s %s; it is started again in %g s", *key, how, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _run(self, source: str, name: str) -> str | None:
        """One process, from its start or its adoption to its end; how it came to that, if it is worth a word."""
        lock = self._files.instance(source, name)
        try:
            holder = await _known_holder(lock)
            if holder is None:
                process = SupervisedProcess.started(self._place, lock, source, name, self._files.log(source))
            elif (adopted := SupervisedProcess.adopted(holder)) is not None:
                _log.warning("source %s: instance %s runs already, as process %d", source, name, holder.pid)
                process = adopted
            else:
                return None
        except OSError as error:
            return f"could not be started: {error}"
        try:
            return await process.ended()
        finally:
            if holder is None or holder.supervised:  # and not a user's command, which is not its to end
                await process.end()
            process.close()

    @asynccontextmanager
    async def _reported(self) -> AsyncIterator[None]:
        """Report in the store, as long as it runs."""
        now = now_ms()
        status = SupervisorStatus(socket.gethostname(), os.getpid(), now, now)

        async def report() -> None:
            while True:
                with suppress(StorageError):
                    await self._sources.supervise(replace(status, at=now_ms()))
                await asyncio.sleep(_REPORT_S)

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            with suppress(StorageError):
                await self._sources.end_supervision(status)


async def _known_holder(lock: ProcessLock) -> LockHolder | None:
    """The process that holds a lock, also if that has only just begun. Raises OSError."""
    while True:
        holder = lock.holder()
        if holder is None or holder.pid:
            return holder
        await asyncio.sleep(_STEP_S)


def _wanted(entry: Entry) -> int:
    """How many instances of a source there are to be."""
    return 0 if entry.phase == "dropping" else entry.replicas
