"""`ControlSession`: a channel in each direction between a coordinator's process and a member, and the talk on both."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from netchannel import (
        BufferPolicy,
        FaultPolicy,
        ReceiverChannel,
        ReceiverServer,
        SenderChannel,
        SenderServer,
    )


class ControlSession:
    """``leave_s`` is how long its end waits until the other side has all that was sent."""

    def __init__(self, inbox: ReceiverChannel, outbox: SenderChannel) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self.leave_s = 0.0

    async def talk(self, told: Callable[[], Awaitable[bytes]], heard: Callable[[bytes], None]) -> None:
        """Send the messages of ``told``, and pass received ones to ``heard``, until the session is over.

        It never returns. Raises NetChannelError, or what ``heard`` raises: that first, where both end it at once.
        """
        tasks = [asyncio.create_task(each) for each in (self._hear_all(heard), self._send_all(told))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [each for each in outcomes if isinstance(each, Exception)]
        raise min(errors, key=lambda error: isinstance(error, NetChannelError))

    async def _send_all(self, told: Callable[[], Awaitable[bytes]]) -> None:
        while True:
            await self.outbox.send(await told())

    async def _hear_all(self, heard: Callable[[bytes], None]) -> None:
        while True:
            heard(bytes(await self.inbox.recv()))


@asynccontextmanager
async def control_session(
    sender: SenderServer,
    receiver: ReceiverServer,
    *,
    hears: str,
    says: str,
    to: str,
    who: str,
    buffer: BufferPolicy | None = None,
    fault: FaultPolicy | None = None,
    grace_s: float | None = None,
) -> AsyncIterator[ControlSession]:
    """Receive on one channel, and send on the other, to the process at ``to``.

    The other side is notified that ``who`` has left; this waits as `ReceiverChannel.close` does, ``grace_s``.
    """
    inbox = receiver.register_channel(hears, codec="bytes", buffer=buffer, fault=fault)
    try:
        outbox = sender.register_channel(says, to=to, codec="bytes", buffer=buffer, fault=fault)
        found = ControlSession(inbox, outbox)
        try:
            yield found
        finally:
            with suppress(NetChannelError):
                await outbox.close(found.leave_s)
    finally:
        await inbox.close(f"{who} has left", grace_s)
