"""``python -m nebuli.members.member_process``: a member in a process of its own.

Its order comes on standard input, on one line; the end of standard input ends it. When it can be greeted it says so on
standard error, and where.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from nebuli.connectors.provider import import_built_in
from nebuli.members.calls.call_inbox import CallInbox
from nebuli.members.coordinator_lines import CoordinatorLines
from nebuli.members.inputs.feeding import feed_all
from nebuli.members.leaving import until_dismissed, until_heard
from nebuli.members.member_order import MemberOrder
from nebuli.members.opening import opened_member
from nebuli.storage import StorageError
from nebuli.without_pandas import hide_pandas
from netchannel import ReceiverServer, SenderServer
from placement.plan import Late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.members.member import Member

READY = "member ready at "
_ENDED = 128 + signal.SIGTERM
"""The exit code of one that was told to end, as shells have it."""


@contextlib.asynccontextmanager
async def opened(order: MemberOrder) -> AsyncIterator[Member]:
    """The member, with its store and its servers open."""
    async with contextlib.AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(ReceiverServer(order.listen, secret=order.secret))
        sender = await stack.enter_async_context(SenderServer(secret=order.secret))
        opening = opened_member(
            order.circuit,
            order.plan,
            order.member,
            order.store,
            order.feeds,
            sender=sender,
            receiver=receiver,
            max_state_bytes=order.max_state_bytes,
            fails_late=order.late is Late.FAIL,
            keep_output_bytes=order.keep_output_bytes,
        )
        yield await stack.enter_async_context(opening)


async def serve(order: MemberOrder) -> None:
    """Be a member until it is dismissed, or cancelled."""
    async with opened(order) as member, asyncio.TaskGroup() as group:
        inbox = CallInbox(member, order.circuit)
        lines = CoordinatorLines(
            order.circuit, order.member, member.sender, member.receiver, member.told, serve=inbox.serve
        )
        working = [
            group.create_task(member.run(lines)),
            group.create_task(feed_all(member, order.feeds, external=order.external)),
        ]
        sys.stderr.write(f"{READY}{member.receiver.address}\n")
        sys.stderr.flush()
        await until_dismissed(member, lines)
        await until_heard(lines)
        for task in working:
            task.cancel()


async def _main() -> bool:
    """Whether it was dismissed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    order = MemberOrder.model_validate_json(await reader.readline())
    serving = asyncio.create_task(serve(order))
    orphaned = asyncio.create_task(reader.read())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    await asyncio.wait([serving, orphaned], return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    orphaned.cancel()
    await asyncio.gather(orphaned, return_exceptions=True)
    try:
        await serving
    except asyncio.CancelledError:
        return False
    return True


def main() -> int:
    """Run the member that standard input asks for; the exit code, which is 0 if it was dismissed."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    hide_pandas()
    import_built_in()
    try:
        return 0 if uvloop.run(_main()) else _ENDED
    except ExceptionGroup as error:
        first = error.exceptions[0]
        if not isinstance(first, StorageError):
            raise
        sys.stderr.write(f"Error: {first}\n")
        return 1
    except (StorageError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a source's thread may be waiting for what does not come
