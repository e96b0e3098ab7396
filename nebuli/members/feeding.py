"""Feeding: physical sources into a member's input log, each from where the log has it."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError
from nebuli.connectors.provider import source_of
from nebuli.storage.errors import Damaged, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.connectors.endpoints import Source
    from nebuli.members.member import Member
    from placement.stepped import Feed

_log = logging.getLogger("nebuli.members")
_LASTING = StoreFull | StoreFailed | Damaged
"""Errors of the log which a new process of the member would have, too."""
WAITING_ROWS = 1 << 18
"""Sources are not read on, and pushes not taken, while so many rows are logged and in no step yet."""


async def room(member: Member) -> None:
    """Wait until the member's log takes more rows: without a deadline, as the circuit may be paused."""
    while member.log.waiting_rows() >= WAITING_ROWS:
        member.taken.clear()
        await member.taken.wait()


@runtime_checkable
class _Skipping(Protocol):
    def skip(self, rows: int) -> None:
        """Begin behind so many rows."""


async def feed_all(member: Member, feeds: Sequence[Feed], *, external: bool) -> None:
    """Read all sources to their ends, then say so; a source that cannot be read, or logged, fails the member.

    ``external``: some inputs are pushed into by others, and do not end with the sources.
    """
    threads = ThreadPoolExecutor(max(len(feeds), 1), "nebuli-source")
    try:
        async with asyncio.TaskGroup() as group:
            for feed in feeds:
                group.create_task(_Feeding(member, feed, threads).run())
    except ExceptionGroup as error:
        first = error.exceptions[0]
        if not isinstance(first, FragmentError | _LASTING):
            raise first from None
        member.failed(first)
        return
    finally:
        threads.shutdown(wait=False)
    if not external:
        member.ended()


class _Feeding:
    """One source."""

    def __init__(self, member: Member, feed: Feed, threads: ThreadPoolExecutor) -> None:
        self._member = member
        self._feed = feed
        self._threads = threads
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        source = source_of(self._feed.source, self._wake)
        try:
            await self._loop.run_in_executor(self._threads, source.open)
            await self._read(source)
        except asyncio.CancelledError:
            source.interrupt()
            raise
        finally:
            source.close("its member has ended")

    def _wake(self) -> None:
        """Called by the source, from whatever thread."""
        self._loop.call_soon_threadsafe(self._woken.set)

    async def _read(self, source: Source) -> None:
        log, name = self._member.log, self._feed.name
        behind = log.position(name)
        if behind and not self._feed.source.physical.repeatable:
            # What comes now are other rows. What it had given and the log has not is gone.
            _log.warning("%s is read on, and cannot be read again", self._feed.source.physical.reads)
            behind = 0
        if behind and isinstance(source, _Skipping):
            source.skip(behind)
            behind = 0
        while True:
            self._woken.clear()
            batch = await self._loop.run_in_executor(self._threads, source.poll)
            if batch is Signal.END:
                return
            if batch is Signal.LATER:
                await self._woken.wait()  # without a deadline: a source may have nothing for days
            elif isinstance(batch, pa.RecordBatch):
                known = min(behind, batch.num_rows)
                behind -= known
                await self._push(batch.slice(known))

    async def _push(self, rows: pa.RecordBatch) -> None:
        log, name = self._member.log, self._feed.name
        await room(self._member)
        if rows.num_rows:
            await log.push(self._feed.input, rows, producer=name, sequence=log.next_sequence(name))
            self._member.arrived(rows.num_rows)
