"""Blocking work of a store, off its event loop: on one thread for what has an order, on a few for blobs."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from nebuli.storage.errors import StoreClosed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_BLOB_THREADS = 4


class Work:
    """A cancelled call goes on to its end, unheard. Closed by the store."""

    def __init__(self) -> None:
        self._ordered = ThreadPoolExecutor(1, "nebuli-store")
        self._blobs = ThreadPoolExecutor(_BLOB_THREADS, "nebuli-blobs")
        self._closed = False

    async def in_order(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call on the thread for what has an order, after all that was asked for before. Raises StoreClosed."""
        return await self._on(self._ordered, call, *arguments)

    async def on_blobs(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call on a thread for blobs, beside others. Raises StoreClosed."""
        return await self._on(self._blobs, call, *arguments)

    async def _on(self, pool: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise StoreClosed
        return await asyncio.get_running_loop().run_in_executor(pool, call, *arguments)

    async def close(self, last: Callable[[], None]) -> None:
        """Call ``last`` when all that was begun is done; after it nothing can be."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._blobs.shutdown)
        await loop.run_in_executor(self._ordered, last)
        await loop.run_in_executor(None, self._ordered.shutdown)
