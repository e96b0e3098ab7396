"""Lines of several workers merged into one stream, in the order of their clocks."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HELD_S = 0.5
"""The time that a line waits for earlier lines of other workers, which may arrive later."""


class Merged:
    """A merge that passes each line to ``tell`` after a wait for earlier lines; ``close`` passes the rest."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, float, str]] = []  # by time, and then in the order of arrival
        self._numbers = count()
        self._news = asyncio.Event()
        self._task = self._loop.create_task(self._run())

    def put(self, time: int, line: str) -> None:
        """Add a line that was written at ``time``."""
        heappush(self._waiting, (time, next(self._numbers), self._loop.time(), line))
        self._news.set()

    async def close(self) -> None:
        """Pass the remaining lines to ``tell``."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        while self._waiting:
            self._tell(heappop(self._waiting)[-1])

    async def _run(self) -> None:
        while True:
            self._news.clear()
            if not self._waiting:
                await self._news.wait()
            rest = self._waiting[0][2] + HELD_S - self._loop.time()
            if rest > 0:
                await asyncio.sleep(rest)  # an earlier line may have arrived meanwhile, so look again
            else:
                self._tell(heappop(self._waiting)[-1])
