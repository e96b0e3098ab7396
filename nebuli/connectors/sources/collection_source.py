"""A collection: its contents at a time, and then all that changes, each time's changes as a whole."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, aclosing, suppress
from itertools import groupby
from operator import itemgetter
from threading import Thread
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import FragmentError, InputError, InputGone
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from nebuli.store.collections.collections import Collections
from nebuli.store.collections.errors import TooLate
from nebuli.store.errors import NotYet, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from topology import CollectionSource as Settings
    from topology import Schema

__all__ = ["CollectionSource"]

_AHEAD, _AHEAD_BYTES = 64, 1 << 24
"""Times, and bytes, that are read ahead."""
_LAST_S = 2.0
"""How long the last move of the hold may take that was asked for before the end."""
_AGAIN_S = 0.5
"""How often to check if a collection without rows has got its first ones."""

_Item = tuple[pa.RecordBatch, int] | Signal | FragmentError


class CollectionSource(Source):
    """`Rereadable`: a position is the time up to which all rows were returned; retracted rows have a negative weight.

    Rows of one time come in a fixed order, the same in every read. They come in a separate batch on request (`apart`):
    then a batch without rows shows that its time, and all earlier ones, are complete.

    A thread of its own has the store, from the first `poll` to `close`. Under the name of a ``reader`` rows after the
    last released position are kept for it.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._place = settings.reads
        self._columns = ArrowColumns(arrow_schema(columns), self._place, "collection")
        self._nothing = pa.RecordBatch.from_pylist([], schema=zset.weighted(arrow_schema(columns)))
        self._wake = wake
        self._position = ""
        self._apart = False
        self._arrived: deque[_Item] = deque()
        self._following: _Following | None = None

    def seek(self, position: str) -> None:
        """Begin after a time. Raises InputError for a malformed one."""
        if position and not (position.isascii() and position.isdigit()):
            raise InputError(
                f"{self._place}: {position[:80]!r} is not a position of a collection: expected a time"
            )
        self._position = position

    @property
    def position(self) -> str:
        """The time up to which all was given; empty before there was anything."""
        return self._position

    @property
    def is_whole(self) -> bool:
        """True if its initial contents were returned, which come as one."""
        return self._position != ""

    def release(self, position: str) -> None:
        """Let go of what is before it, where a ``reader`` holds it; that is not waited for."""
        if position and self._following is not None:
            self._following.release(int(position))

    def apart(self) -> None:
        """Have each batch be of one time."""
        self._apart = True

    def hasten(self) -> None:
        """Advance the time of the store, and so learn that nothing was written."""
        if self._following is not None:
            self._following.hasten()

    def open(self) -> None:
        """Begin; the collection need not exist yet, as it is checked in `poll`."""

    def poll(self) -> pa.RecordBatch | Signal:
        """The contents, or what has changed at a time, or nothing up to a time."""
        if self._following is None:
            self._following = _Following(self._settings, self._position, self._arrived, self._wake)
        taken: list[pa.RecordBatch] = []
        while self._arrived and isinstance(item := self._arrived[0], tuple):
            self._arrived.popleft()
            rows, time = item
            self._following.taken(rows)
            self._position = str(time)
            if rows.num_rows:
                taken.append(self._checked(rows))
            if self._apart:
                return taken[0] if taken else self._nothing
        if taken:
            return pa.concat_batches(taken)
        if not self._arrived:
            return Signal.LATER
        if isinstance(item, FragmentError):
            raise item
        return item

    def _checked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self._columns.check(rows.schema)
        return zset.with_weights(self._columns.of(rows), zset.weights_of(rows))

    def close(self, reason: str) -> None:
        """Let go of the store and of the thread; what was released just before is let go of first."""
        following, self._following = self._following, None
        if following is not None:
            following.close()


class _Following:
    """The changes of a collection, on a thread with an event loop; one other thread takes it from ``arrived``."""

    def __init__(
        self, settings: Settings, position: str, arrived: deque[_Item], wake: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._position = position
        self._arrived = arrived
        self._wake = wake
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Event()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._hasty = asyncio.Event()
        self._closing = asyncio.Event()
        self._released: int | None = None
        self._held: int | None = None
        self._thread = Thread(
            target=lambda: self._loop.run_until_complete(self._run()), name=settings.reads, daemon=True
        )
        self._thread.start()

    def taken(self, rows: pa.RecordBatch) -> None:
        """There is room for more."""
        self._loop.call_soon_threadsafe(self._make_room, rows.nbytes)

    def _make_room(self, size: int) -> None:
        self._waiting_bytes -= size
        self._room.set()

    def hasten(self) -> None:
        """Have the store's time move on."""
        self._loop.call_soon_threadsafe(self._hasty.set)

    def release(self, time: int) -> None:
        """Hold only rows after this time."""
        self._released = time
        self._loop.call_soon_threadsafe(self._news.set)

    def close(self) -> None:
        """End, once the last hold is where it should be."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            try:
                collections = await stack.enter_async_context(Collections(self._settings.store))
            except StorageError as error:
                self._put(InputError(f"{self._settings.reads}: {error}"))
                await self._closing.wait()
                return
            work = [self._told(self._follow(collections)), self._move_on_whenever_hasty(collections)]
            if self._settings.reader is not None:
                work.append(self._hold_whenever_released(collections))
            tasks = [asyncio.create_task(each) for each in work]
            await self._closing.wait()
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._hold(collections)

    async def _told(self, work: AsyncGenerator[_Item]) -> None:
        """Put what comes, and at the end why nothing more does."""
        place = self._settings.reads
        try:
            async with aclosing(work) as items:  # or the reader's hold would stay until its lease is over
                async for item in items:
                    if isinstance(item, tuple):
                        self._waiting_bytes += item[0].nbytes
                    self._put(item)
                    while len(self._arrived) >= _AHEAD or self._waiting_bytes > _AHEAD_BYTES:
                        self._room.clear()
                        await self._room.wait()
        except TooLate as error:
            reader = (
                "" if self._settings.reader else "; give the source a reader, for which unread rows are kept"
            )
            self._put(InputGone(f"{place}: {error}; restart the query from scratch{reader}"))
        except StorageError as error:
            self._put(InputError(f"{place}: {error}"))
        except FragmentError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - any error: the fragment waits for this task
            self._put(FragmentError(f"{place}: {type(error).__name__}: {error}"))

    def _put(self, item: _Item) -> None:
        self._arrived.append(item)
        self._wake()

    async def _follow(self, collections: Collections) -> AsyncGenerator[_Item]:
        name = self._settings.collection
        begins = not self._position
        as_of = await self._start(collections)
        if not self._settings.follow:
            if begins:
                contents = await collections.snapshot(name, as_of, weighted=True)
                yield self._in_order([*contents.to_batches()], contents.schema), as_of
            yield Signal.END
            return
        async with aclosing(collections.subscribe(name, as_of, snapshot=begins)) as spans:
            async for span in spans:
                last = span.lower - 1
                for last, some in groupby(span.updates, key=itemgetter(0)):
                    rows = [rows for _, rows in some]
                    yield self._in_order(rows, rows[0].schema), last
                if last < span.upper - 1:
                    yield _EMPTY, span.upper - 1

    async def _start(self, collections: Collections) -> int:
        """Return the time after which rows are new, which is held for a reader.

        One that begins again, and has released nothing, begins where it had begun.
        """
        if self._position and self._settings.follow:
            await self._check_same(collections, int(self._position))
        position = int(self._position) if self._position else self._settings.as_of
        if self._settings.reader is None:
            return position if position is not None else await self._latest(collections)
        name = self._settings.collection
        known = (await collections.describe(name)).holds.get(self._hold_name)
        if known is not None:  # lower, perhaps: until it is released, an older checkpoint may be resumed
            self._held = known.time
            return position if position is not None else known.time
        at = position if position is not None else await self._latest(collections)
        await collections.hold(name, self._hold_name, at)
        self._held = at
        return at

    async def _check_same(self, collections: Collections, position: int) -> None:
        """Raise InputGone where what was read up to a position was dropped, and another one made by its name.

        If writers give the times, these do not show it.
        """
        found = await collections.describe(self._settings.collection)
        if found.timed == "store" and position < found.created:
            raise InputGone(
                f"{self._settings.reads}: the query has read it up to {position}, but the collection that has "
                f"its name now was created later, at {found.created}: restart the query from scratch"
            )

    async def _latest(self, collections: Collections) -> int:
        while True:
            try:
                return await collections.latest(self._settings.collection)
            except NotYet:
                await asyncio.sleep(_AGAIN_S)

    async def _move_on_whenever_hasty(self, collections: Collections) -> None:
        while True:
            await self._hasty.wait()
            self._hasty.clear()
            with suppress(StorageError):  # it advances automatically
                await collections.move_on()

    def _in_order(self, rows: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
        """The rows as one, in the same order when they are read again: the store keeps none."""
        one = pa.concat_batches(rows) if rows else pa.RecordBatch.from_pylist([], schema=schema)
        return zset.canonical(one) if self._settings.reader is not None and one.num_rows else one

    # -- the hold

    @property
    def _hold_name(self) -> str:
        return f"source/{self._settings.reader}"

    async def _hold_whenever_released(self, collections: Collections) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            with suppress(StorageError):  # it holds more than it needs to, until the next time
                await self._hold(collections)

    async def _hold(self, collections: Collections) -> None:
        if self._released is not None and self._held is not None and self._released > self._held:
            to = self._released
            await collections.hold(self._settings.collection, self._hold_name, to)
            self._held = to


_EMPTY = pa.RecordBatch.from_arrays([], names=[])
