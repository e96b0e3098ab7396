"""A shard as its process knows it, and those that wait until it is another."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from nebuli.storage.errors import NotYet, StoreClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .state import ShardState


class Tracked:
    """Its ``state`` follows the ordering; it may be behind it, never ahead."""

    def __init__(self, name: str, state: ShardState) -> None:
        self.name = name
        self.state = state
        self._waiters: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for another state."""
        return bool(self._waiters)

    def changed(self, state: ShardState) -> None:
        """There is a newer one."""
        self.state = state
        self._wake()

    def close(self) -> None:
        """Whoever waits gets StoreClosed, and whoever comes."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def reach(self, time: int, deadline_s: float | None) -> None:
        """Wait until the upper is above ``time``. Raises NotYet, StoreClosed."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.state.upper <= time:
                    async with self.next_state() as changed:
                        await changed
        except TimeoutError:
            raise NotYet(self.name, time, self.state.upper, deadline_s or 0.0) from None
        if self._closed:
            raise StoreClosed

    @asynccontextmanager
    async def next_state(self) -> AsyncIterator[asyncio.Future[None]]:
        """A future that is done when there is a newer state. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)
