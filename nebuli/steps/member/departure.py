"""When a member may go: not before its coordinator has reported that all have stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nebuli.connectors.errors import InputError

if TYPE_CHECKING:
    from nebuli.steps.member.coordinator_connections import CoordinatorConnections
    from nebuli.steps.member.member import Member

_log = logging.getLogger("nebuli.steps.member")
ALONE_S = 600.0
"""A member that has stopped goes without a word, too, once no coordinator was connected for so long.

To wait costs an idle process; to go too early may cost the circuit, if another member has not stopped yet and the
coordinator comes back: all would be needed for the next epoch. So it is longer than the time in which a coordinator
comes back automatically: a process is started again within seconds, a host in some minutes, and a cluster gives a host
up after five.
"""
GONE_S = 10.0
"""The same where a process of the member before this one was dismissed.

Its coordinator has ended, or comes to dismiss this one, too.
"""
HEARD_S = 40.0
"""How long a member that is dismissed answers questions of its coordinator's process, for clients that read an output
to its end. That process leaves all members at once: when the last one has confirmed, or after
`nebuli.steps.protocol.lockstep_parts.AWAY_S`."""


async def until_dismissed(member: Member, lines: CoordinatorConnections, alone_s: float = ALONE_S) -> None:
    """Wait until a member may end its process."""
    waiting = [
        asyncio.create_task(member.dismissed.wait()),
        asyncio.create_task(_until_alone(member, lines, alone_s)),
    ]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if member.dismissed.is_set():
        await _let_go(member)


async def _let_go(member: Member) -> None:
    """All have stopped at the last step, and no process will continue from before that.

    Sources need keep nothing for it.
    """
    try:
        await member.readings.release(member.log.last)
    except InputError as error:
        _log.warning(
            "member %d has not released the input that it read; the next run releases it: %s",
            member.number,
            error,
        )


async def _until_alone(member: Member, lines: CoordinatorConnections, alone_s: float) -> None:
    while True:
        await member.closed.wait()
        await lines.deserted(alone_s)
        if member.closed.is_set():
            _log.warning(
                "member %d has stopped cleanly, and ends, because no coordinator has been connected for %g s",
                member.number,
                alone_s,
            )
            return


async def until_heard(lines: CoordinatorConnections, within_s: float = HEARD_S) -> None:
    """Wait until all coordinators have received their answers, and have left."""
    try:
        async with asyncio.timeout(within_s):
            await lines.left()
    except TimeoutError:
        return
