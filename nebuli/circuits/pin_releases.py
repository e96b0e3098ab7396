"""`PinReleases`: members release pins in the background."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.steps.coordinator.call_connection import CallConnection

_RELEASE_S = 5.0


class PinReleases:
    """Those that are on their way. A member that does not receive one releases the pin when its time is over."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def release(self, name: str, lines: Sequence[CallConnection]) -> None:
        """Have the members on these lines let go of a pin."""

        async def release() -> None:
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await asyncio.gather(*(line.unpin(name) for line in lines))

        task = asyncio.create_task(release())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Send no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
