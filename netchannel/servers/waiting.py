"""Waiting for a channel's core to change."""

from __future__ import annotations

import asyncio

from netchannel.errors import NetChannelError


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise NetChannelError on another loop than ``loop``, or on none."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        raise NetChannelError(
            "a channel was used from another event loop than its server's, or another thread: use the services of "
            "netchannel.aio, or of netchannel for threads, which serve all of them, or a server of this loop's own"
        )


class Changes:
    """Lets any number of tasks wait until `notify` is called. Cancelling one leaves nothing behind."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[asyncio.Future[None], None] = {}

    def check_loop(self) -> None:
        """A channel belongs to the event loop that its server runs on. Raises NetChannelError on another."""
        if asyncio._get_running_loop() is not self._loop:  # noqa: SLF001 - it is documented, and does not raise
            check_loop(self._loop)

    def notify(self) -> None:
        """Wake all who wait now, those first who came first; they look again at what they wait for."""
        if self._waiters:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, at_most_s: float | None = None) -> None:
        """Until the next `notify`, or so many seconds."""
        self.check_loop()
        waiter = self._loop.create_future()
        self._waiters[waiter] = None
        alarm = None if at_most_s is None else self._loop.call_later(at_most_s, _wake, waiter)
        try:
            await waiter
        finally:
            del self._waiters[waiter]
            if alarm is not None:
                alarm.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
