"""A source that is asked on threads, by code that waits on an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from nebuli.connectors.endpoints import Signal, Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor
    from typing import Any

S = TypeVar("S", bound=Source)


class PolledSource(Generic[S]):
    """``source``, made with what it is to call when it has something after it had nothing; one call at a time."""

    def __init__(self, make: Callable[[Callable[[], None]], S], threads: ThreadPoolExecutor) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._threads = threads
        self._turn = asyncio.Lock()
        self._asked: Future[Any] | None = None
        self.source = make(self._wake)

    def _wake(self) -> None:
        """Called by the source, from any thread."""
        self._loop.call_soon_threadsafe(self._woken.set)

    async def open(self) -> None:
        """Open it. Raises InputError."""
        await self.call(self.source.open)

    async def next(self) -> pa.RecordBatch | None:
        """Its next rows, which may be none; None at its end. Raises InputError."""
        while True:
            self._woken.clear()
            batch = await self.call(self.source.poll)
            if batch is Signal.END:
                return None
            if batch is Signal.LATER:
                await self._woken.wait()  # without a deadline: a source may have nothing for days
            elif isinstance(batch, pa.RecordBatch):
                return batch

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it on a thread. A cancelled call continues there, and is asked to end."""
        async with self._turn:
            self._asked = self._threads.submit(function, *arguments)
            try:
                return await asyncio.wrap_future(self._asked)
            except asyncio.CancelledError:
                self.source.interrupt()
                raise

    def close(self) -> None:
        """Close it, once no call is in it."""
        if self._asked is None or self._asked.done():
            self._close()
        else:
            self.source.interrupt()
            self._asked.add_done_callback(self._close)

    def _close(self, _: object = None) -> None:
        self.source.close("its member has ended")
