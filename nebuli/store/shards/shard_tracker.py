"""A shard as its process knows it, and those that wait until it is another."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nebuli.store.errors import NotYet, ShardUnknown, StoreClosed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.store.shards.shard_state import ShardState


class ShardTracker:
    """A shard's ``state``, which follows the ordering; it may lag, but is never ahead."""

    def __init__(self, name: str, state: ShardState) -> None:
        self.name = name
        self.state = state
        self._waiters: set[asyncio.Future[None]] = set()
        self._awaiting = 0
        self._closed = False

    @property
    def is_awaited(self) -> bool:
        """True if a task waits for another state, or is about to."""
        return self._awaiting > 0

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A context, entered before the state is last brought up to date: what comes after it is not missed."""
        self._awaiting += 1
        try:
            yield
        finally:
            self._awaiting -= 1

    def changed(self, state: ShardState) -> None:
        """Take a newer state."""
        self.state = state
        self._wake()

    def close(self) -> None:
        """Have waiting and later tasks get StoreClosed."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def reach(self, time: int, deadline_s: float | None) -> None:
        """Wait until the upper is above ``time``. Raises NotYet, ShardUnknown, StoreClosed."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.state.upper <= time and not self.state.dropped:
                    await self._next_state()
        except TimeoutError:
            raise NotYet(self.name, time, self.state.upper, deadline_s or 0.0) from None
        if self.state.dropped:
            raise ShardUnknown(self.name)
        if self._closed:
            raise StoreClosed

    async def _next_state(self) -> None:
        """Wait until there is a newer one. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
