"""Feeding: physical sources into a member, which logs the rows of those that cannot be read again."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from nebuli.connectors.errors import FragmentError
from nebuli.connectors.provider import source_of
from nebuli.steps.member.inputs.replayable_source import PolledSource
from nebuli.store.errors import Damaged, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.steps.member.member import Member
    from placement.stepped_plan import Feed

_log = logging.getLogger("nebuli.steps.member")
_LASTING = StoreFull | StoreFailed | Damaged
"""Errors of the log which a new process of the member would have, too."""


async def feed_all(member: Member, feeds: Sequence[Feed], *, external: bool) -> None:
    """Read all sources to their ends, then report it; a source that cannot be read, or logged, fails the member.

    ``external``: some inputs are pushed into by others, and do not end with the sources.
    """
    beat = asyncio.create_task(member.readings.times.beat(member.arrived))
    logged = [feed for feed in feeds if not feed.source.physical.can_be_read_again]
    threads = ThreadPoolExecutor(max(len(logged), 1), "nebuli-source")
    try:
        async with asyncio.TaskGroup() as group:
            for reading in member.readings:
                has_room = partial(member.step_inputs.room, reading.feed.input, reading)
                group.create_task(reading.read(has_room, member.arrived))
            for feed in logged:
                group.create_task(_log_all(member, feed, threads))
        if external:  # no end comes
            await beat
    except ExceptionGroup as error:
        first = error.exceptions[0]
        if not isinstance(first, FragmentError | _LASTING):
            raise first from None
        member.failed(first)
        return
    finally:
        beat.cancel()
        threads.shutdown(wait=False)
    if not external:
        member.ended()


async def _log_all(member: Member, feed: Feed, threads: ThreadPoolExecutor) -> None:
    """Log the rows of a source that gives each once."""
    log, name = member.log, feed.name
    source = PolledSource(lambda wake: source_of(feed.source, wake), threads)
    try:
        await source.open()
        if log.position(name):  # what comes now are other rows; what it had given and the log has not is gone
            _log.warning(
                "%s continues, but its earlier rows cannot be read again", feed.source.physical.reads
            )
        while (rows := await source.next()) is not None:
            if not rows.num_rows:
                continue
            await member.step_inputs.room(feed.input)
            await log.push(feed.input, rows, producer=name, sequence=log.next_sequence(name))
            member.arrived(rows.num_rows)
    finally:
        source.close()
