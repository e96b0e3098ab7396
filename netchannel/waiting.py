"""Waiting for a channel's core to change."""

from __future__ import annotations

import asyncio


class Changes:
    """Lets any number of tasks wait until `notify` is called. Cancelling one leaves nothing behind."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all who wait now; they look again at what they wait for."""
        if self._waiters:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next `notify`."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
