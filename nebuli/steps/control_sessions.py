"""The channels between a coordinator and a member: their names, and the greeting that begins a session.

A member is greeted on one channel that every coordinator knows. The greeting names a session and where the coordinator
is reached; the session has a channel in each direction of its own, so that what is still on its way from an older one
finds no channel of that name. A greeting is a stream of one message: the next one to greet waits for its end.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netchannel import NetChannelError

from .protocol.messages import packed, read, text

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


_VERSION = 1


@dataclass(frozen=True, slots=True)
class Greeting:
    """A coordinator's first message.

    The ``session`` under which it receives messages, and the ``address`` to answer to.
    """

    session: str
    address: str


def greetings(circuit: str, member: int) -> str:
    """The id of the channel on which a member is greeted."""
    return f"{circuit}/members/{member}/greetings"


def to_member(circuit: str, member: int, session: str) -> str:
    """Return the id of the channel for messages to a member."""
    return f"{circuit}/members/{member}/{session}/told"


def to_coordinator(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which a member answers."""
    return f"{circuit}/members/{member}/{session}/said"


def encoded(greeting: Greeting) -> bytes:
    """The bytes of a greeting."""
    return packed([_VERSION, greeting.session, greeting.address])


def read_greeting(data: bytes, sender: str) -> Greeting:
    """The greeting in these bytes. Raises MalformedMessage, which names the sender."""
    return read(data, sender, _greeting)


def _greeting(values: list[Any]) -> Greeting:
    if len(values) != 3 or values[0] != _VERSION:
        raise ValueError(f"expected a greeting of version {_VERSION}")
    session, address = map(text, values[1:])
    if not session or not address:
        raise ValueError("the greeting has no session, or no address")
    return Greeting(session, address)


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
