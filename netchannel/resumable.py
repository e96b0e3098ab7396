"""Asynchronous iterators that a cancelled call does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Item = TypeVar("Item")


class Resumable(AsyncGenerator[Item, None]):
    """The items of ``source``, which yields runs of them. A cancelled call takes none, and the next call continues.

    An asynchronous generator ends with a call that is cancelled: to the next call this looks like a clean end. Here the
    source runs in a task of its own while it waits. A cancelled call leaves that task running, at most until the next
    run of items is there, which is the next call's. `aclose` cancels it and closes the source, and so does dropping the
    iterator; closing its event loop ends it.

    Several tasks may call at once; each item goes to one of them. The error that ends the source is raised by every
    call from then on.
    """

    def __init__(self, source: AsyncGenerator[Iterable[Item], None]) -> None:
        self._source = source
        self._items: Iterator[Item] = iter(())
        self._step: asyncio.Task[Iterable[Item]] | None = None
        self._over: Exception | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __anext__(self) -> Item:
        """Wait for the next item. A call that is cancelled took none."""
        while True:
            try:
                for item in self._items:
                    return item
                await self._more()
            except Exception as error:
                self._over = error
                await self._close()
                raise

    async def _more(self) -> None:
        if self._over is not None:
            raise self._over.with_traceback(None)
        step = self._step
        if step is None:
            step = self._step = asyncio.get_running_loop().create_task(_next(self._source))
            # As `asyncio.gather` does: the end of its event loop is an end, and no mistake of the caller's.
            step._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
            step.add_done_callback(_retrieve)
        if not step.done():
            await asyncio.wait((step,))
        if step is not self._step:
            return  # another call has taken it, or has closed this
        if step.cancelled():
            raise RuntimeError(
                "the task that waited for the next item was cancelled by other code, for example by an event loop "
                "that ends: make another iterator, which continues after the last item"
            )
        self._step, self._items = None, iter(step.result())

    async def asend(self, value: None) -> Item:
        """As `__anext__`."""
        return await self.__anext__()

    async def athrow(self, kind: Any, value: Any = None, trace: Any = None) -> Item:
        """Close this, and raise the exception."""
        await self.aclose()
        raise kind if value is None else value

    async def aclose(self) -> None:
        """Give nothing any more: calls that wait end, too. A call that is cancelled can be repeated."""
        await self.end(StopAsyncIteration())

    async def end(self, error: Exception) -> None:
        """As `aclose`, for its owner: calls raise ``error``."""
        self._over = self._over or error
        await self._close()

    async def _close(self) -> None:
        """Close the source once: a cancelled call leaves that to its task, and all calls wait for the same one."""
        self._items = iter(())
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_source())
            self._closing.add_done_callback(_retrieve)
        await asyncio.shield(self._closing)

    async def _close_source(self) -> None:
        step, self._step = self._step, None
        if step is not None and not step.done():
            step.cancel()
            await asyncio.wait((step,))
        await self._source.aclose()

    def __del__(self) -> None:
        step = self._step
        if step is not None and not step.done():
            with suppress(RuntimeError):  # its loop is closed
                step.get_loop().call_soon_threadsafe(step.cancel)


async def _next(source: AsyncGenerator[Iterable[Item], None]) -> Iterable[Item]:
    return await anext(source)


def _retrieve(step: asyncio.Task[Any]) -> None:
    """Let an error that no call asks for be dropped without a log line."""
    if not step.cancelled():
        step.exception()
