"""Waiting for a channel's core to change."""

from __future__ import annotations

import asyncio

from netchannel.errors import NetChannelError


class Changes:
    """Lets any number of tasks wait until `notify` is called. Cancelling one leaves nothing behind."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()

    def check_loop(self) -> None:
        """A channel belongs to the event loop that its server runs on. Raises NetChannelError on another."""
        if asyncio.get_running_loop() is not self._loop:
            raise NetChannelError(
                "a channel was used from another event loop than its server's: use netchannel.aio, whose services "
                "serve every loop, or a server of this loop's own"
            )

    def notify(self) -> None:
        """Wake all who wait now; they look again at what they wait for."""
        if self._waiters:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next `notify`."""
        self.check_loop()
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
