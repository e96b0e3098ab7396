"""Wakes all that wait for changes of a store, when any process has appended something."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nebuli.store.ordering import Bell

_FALLBACK_S = 1.0
"""A process that is killed between an append and the bell is noticed by the others after as long."""


class Waking:
    """Calls ``look`` whenever the bell has rung, once a task has waited. Closed by the store."""

    def __init__(self, bell: Callable[[], Bell], look: Callable[[], Awaitable[None]]) -> None:
        self._make_bell = bell
        self._look = look
        self._rung = asyncio.Event()
        self._bell: Bell | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, as a task waits. Raises StoreUnusable."""
        if self._bell is None:
            self._bell = self._make_bell()
            loop = asyncio.get_running_loop()
            loop.add_reader(self._bell.fileno(), self._heard)
            self._task = loop.create_task(self._watch())

    def _heard(self) -> None:
        if self._bell is not None:
            self._bell.silence()
        self._rung.set()

    async def _watch(self) -> None:
        while True:
            with suppress(
                StorageError
            ):  # waiting tasks wait until their deadlines: the next look may find more
                await self._look()
            with suppress(TimeoutError):  # not by wait_for, which may lose a cancel
                async with asyncio.timeout(_FALLBACK_S):
                    await self._rung.wait()
            self._rung.clear()

    async def close(self) -> None:
        """Wake no task any more."""
        bell, self._bell = self._bell, None
        if bell is not None and self._task is not None:
            asyncio.get_running_loop().remove_reader(bell.fileno())
            bell.close()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
