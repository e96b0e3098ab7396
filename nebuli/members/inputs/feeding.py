"""Feeding: physical sources into a member, which logs the rows of those that cannot be read again."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nebuli.connectors.errors import FragmentError
from nebuli.connectors.provider import source_of
from nebuli.members.inputs.polled_source import PolledSource
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
"""Sources are not read on, and pushes not taken, while so many rows have come in and are in no step yet."""
WAITING_BYTES = 1 << 26
"""The same for the bytes of those that are kept in memory."""


async def room(member: Member) -> None:
    """Wait until the member takes more rows: without a deadline, as the circuit may be paused."""
    while member.waiting_rows >= WAITING_ROWS or member.readings.waiting_bytes >= WAITING_BYTES:
        member.taken.clear()
        await member.taken.wait()


async def feed_all(member: Member, feeds: Sequence[Feed], *, external: bool) -> None:
    """Read all sources to their ends, then say so; a source that cannot be read, or logged, fails the member.

    ``external``: some inputs are pushed into by others, and do not end with the sources.
    """
    logged = [feed for feed in feeds if not feed.source.physical.can_be_read_again]
    threads = ThreadPoolExecutor(max(len(logged), 1), "nebuli-source")
    try:
        async with asyncio.TaskGroup() as group:
            for reading in member.readings:
                group.create_task(reading.read(lambda: room(member), member.arrived))
            for feed in logged:
                group.create_task(_log_all(member, feed, threads))
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


async def _log_all(member: Member, feed: Feed, threads: ThreadPoolExecutor) -> None:
    """Log the rows of a source that gives each once."""
    log, name = member.log, feed.name
    source: PolledSource[Source] = PolledSource(lambda wake: source_of(feed.source, wake), threads)
    try:
        await source.open()
        if log.position(name):  # what comes now are other rows; what it had given and the log has not is gone
            _log.warning("%s is read on, and cannot be read again", feed.source.physical.reads)
        while (rows := await source.next()) is not None:
            await room(member)
            await log.push(feed.input, rows, producer=name, sequence=log.next_sequence(name))
            member.arrived(rows.num_rows)
    finally:
        source.close()
