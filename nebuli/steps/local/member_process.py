"""A member in a process of its own.

Its order comes on standard input, on one line; the end of standard input ends it. When a coordinator can greet it, it
writes its address on standard error.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from nebuli.connectors.provider import import_built_in
from nebuli.log_output import log_to_stderr
from nebuli.steps.member.member_order import MemberOrder
from nebuli.steps.member.member_run import Said, serve
from nebuli.steps.protocol.errors import CoordinationError
from nebuli.store import StorageError
from nebuli.without_pandas import hide_pandas
from netchannel import NetChannelError

_ENDED = 128 + signal.SIGTERM
"""The exit code of a process ended by SIGTERM, as in shells."""


def _say(said: Said, address: str) -> None:
    sys.stderr.write(f"{said}{address}\n")
    sys.stderr.flush()


async def _main() -> bool:
    """Return true if it was dismissed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    order = MemberOrder.model_validate_json(await reader.readline())
    serving = asyncio.create_task(serve(order, _say))
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


def run_member() -> int:
    """Run the member that standard input asks for; the exit code, which is 0 if it was dismissed."""
    log_to_stderr()
    hide_pandas()
    import_built_in()
    try:
        return 0 if uvloop.run(_main()) else _ENDED
    except (CoordinationError, NetChannelError, StorageError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
