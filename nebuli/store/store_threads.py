"""Blocking work of a store, off its event loop: on one thread for what has an order, on a few for blobs."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from nebuli.store.errors import StoreClosed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_Asked = tuple["asyncio.Future[Any]", "Callable[..., Any]", tuple[Any, ...]]
"""The future to resolve, the call, and its arguments."""

_BLOB_THREADS = 4


class StoreThreads:
    """A cancelled call runs to its end, unnoticed. Made on an event loop. Closed by the store."""

    def __init__(self) -> None:
        self._ordered = _OneThread("nebuli-store")
        self._blobs = ThreadPoolExecutor(_BLOB_THREADS, "nebuli-blobs")
        self._closed = False

    async def in_order(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call on the thread for what has an order, after all that was asked for before. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed
        done: T = await self._ordered.ask(call, *arguments)
        return done

    async def on_blobs(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call on a thread for blobs, concurrently. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed
        return await asyncio.get_running_loop().run_in_executor(self._blobs, call, *arguments)

    async def close(self, last: Callable[[], None]) -> None:
        """Call ``last`` when all that was begun is done; after it nothing can be.

        After a cancel ``last`` is called all the same, perhaps before all is done.
        """
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._blobs.shutdown)
        finally:
            ended = self._ordered.end_with(last)
        await asyncio.shield(ended)  # what is cancelled before it began is not called


class _OneThread:
    """A thread that makes calls one after the other, and reports their results on the event loop.

    An executor does the same by two futures for each call, with locks, which takes as long as a small append to a disk.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        # A process that ends in the middle is like a killed one: no result was reported.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Have it make a call; if that is cancelled before it began, it is not made."""
        told: asyncio.Future[Any] = self._loop.create_future()
        self._asked.put((told, call, arguments))
        return told

    def end_with(self, call: Callable[..., Any]) -> asyncio.Future[Any]:
        """Do the same, and end after this call."""
        told = self.ask(call)
        self._asked.put(None)
        return told

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._call(*asked)
            del asked  # what it was about is not held until the next one

    def _call(self, told: asyncio.Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if told.cancelled():
            return
        try:
            came = call(*arguments)
        except BaseException as error:  # noqa: BLE001 - the waiting task gets it
            self._tell(told, told.set_exception, error)
        else:
            self._tell(told, told.set_result, came)

    def _tell(self, told: asyncio.Future[Any], say: Callable[[Any], None], what: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(_say, told, say, what)


def _say(told: asyncio.Future[Any], say: Callable[[Any], None], what: Any) -> None:
    if not told.done():  # it was cancelled meanwhile
        say(what)
