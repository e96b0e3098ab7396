"""Waiters of tasks for a change of a channel's core."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from netchannel.errors import NetChannelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from netchannel.core.link import Core
    from netchannel.core.receiving.inbound import InboundChannel


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise NetChannelError on another loop than ``loop``, or on none."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        raise NetChannelError(
            "a channel can be used only in the event loop and thread of its server, but was used in another event loop "
            "or thread: use a server of this loop, or a process-wide server (of netchannel.aio; in threads, of "
            "netchannel), which serves all loops and threads"
        )


class Waiter(asyncio.Future[None]):
    """A task's wait. The code that ends it decides if the task continues at once, or in the loop's next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._told: list[tuple[Callable[[Any], object], Context]] = []

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        """The task waits, before it is over."""
        self._told.append((fn, context or copy_context()))

    def cancel(self, msg: Any | None = None) -> bool:
        """The task is cancelled."""
        if not super().cancel(msg):
            return False
        self.get_loop().call_soon(self.resume)
        return True

    def end(self, visit: list[Callable[[], None]] | None) -> None:
        """The wait is over: the task continues at the end of ``visit``, or in the loop's next turn."""
        self.set_result(None)
        if visit is None:
            self.get_loop().call_soon(self.resume)
        else:
            visit.append(self.resume)

    def resume(self) -> None:
        """Let the task continue."""
        for fn, context in self._told:
            context.run(fn, self)


class Changes:
    """Lets any number of tasks wait until `notify` is called. Cancelling one leaves no trace."""

    def __init__(self, core: Core | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._waiters: dict[Waiter, None] = {}

    def check_loop(self) -> None:
        """A channel belongs to the event loop that its server runs on. Raises NetChannelError on another."""
        if asyncio._get_running_loop() is not self._loop:  # noqa: SLF001 - it is documented, and does not raise
            check_loop(self._loop)

    def notify(self) -> None:
        """Wake all tasks that wait now, in the order in which they came; they check their conditions again."""
        if self._waiters:
            visit = None if self._core is None else self._core.visit
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.end(visit)

    async def wait(self, at_most_s: float | None = None) -> None:
        """Wait until the next `notify`, or so many seconds."""
        self.check_loop()
        waiter = Waiter(self._loop)
        self._waiters[waiter] = None
        alarm = None if at_most_s is None else self._loop.call_later(at_most_s, _wake, waiter)
        try:
            await waiter
        finally:
            del self._waiters[waiter]
            if alarm is not None:
                alarm.cancel()


async def wait_for_farewell(channel: InboundChannel, changes: Changes, grace: float | None) -> None:
    """Wait until a channel's sender has received its last word, ``grace`` seconds at most, or the server's ``leave_s``.

    A process that ends before that loses it where something of the sender's was not read: its connection is
    reset.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(channel.core.timing.leave_s if grace is None else grace):
            while channel.parting:
                await changes.wait()


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.end(None)
